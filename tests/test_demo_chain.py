"""The demo's chain on the trained sentence encoder: what fuses, what does not and why, and that the
sentences stay as similar as they were.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
import torch
from torch import nn

import planner
from fusion_kernels.compile import compile_ahead
from fusion_kernels.load import load_kernel
from planner.facts import facts_folder
from planner.fusion.module import FusedModule
from planner.graph.op_graph import OpNode
from planner.graph.view import op_graph
from planner.passes.linear_bias import split_linear_bias
from planner.passes.runner import run_passes
from planner.pipeline import capture
from planner.report.io import read_report
from planner.report.model import Report
from planner.report.run_dir import write_report

EXAMPLE = Path(__file__).parent.parent / "examples" / "01_sentence_similarity.py"
# What a fused kernel may not hold: GEMMs, attention, and what moves no data.
LEFT_TO_LIBRARIES = ("aten.linear.default", "aten.scaled_dot_product_attention.default")
PURE_VIEWS = ("view", "transpose", "permute", "expand", "unsqueeze", "reshape", "slice", "select")


@dataclass(frozen=True)
class Demo:
    """The demo's model and inputs, before and after."""

    example: ModuleType
    encoder: nn.Module
    kwargs: dict[str, Any]
    state: dict[str, torch.Tensor]
    fused: FusedModule
    out: Path

    @property
    def report(self) -> Report:
        return self.fused.report


def _example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sentence_similarity", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    out = tmp_path_factory.mktemp("demo")
    example = _example()
    try:
        encoder, args, kwargs = example.build()
    except SystemExit as missing:
        raise RuntimeError(str(missing)) from missing
    state = {name: value.clone() for name, value in encoder.state_dict().items()}
    fused = planner.fuse(
        encoder, args, kwargs, name="all-MiniLM-L6-v2", out=out, compile_peer=False
    )
    write_report(out, fused.report)
    return Demo(example, encoder, kwargs, state, fused, out)


def _first_layer(demo: Demo) -> list[OpNode]:
    """The operators of encoder.layer.0 that a kernel could hold, as they stand when places are
    looked for.
    """
    program = capture(demo.encoder, (), demo.kwargs).program
    run_passes(program, (("split_linear_bias", split_linear_bias),))
    return [
        node
        for node in op_graph(program)
        if node.module_path.startswith("encoder.layer.0.")
        and node.op not in LEFT_TO_LIBRARIES
        and node.op.split(".")[1] not in PURE_VIEWS
    ]


def test_both_named_rules_are_kept_in_every_layer(demo: Demo) -> None:
    kept = [row.rule for row in demo.report.fusions if row.kept]
    assert kept.count("gelu_residual") == 6
    # One after attention and one after the feed-forward part in each of six layers.
    assert kept.count("add_layer_norm") == 12
    # The embeddings' norm is fused with the lookups or without, as measured.
    assert any("layer_norm" in row.nodes for row in demo.report.fusions if row.kept)


def test_every_operator_of_a_layer_is_in_a_region_or_has_a_reason(demo: Demo) -> None:
    layer = _first_layer(demo)
    fused = {name for row in demo.report.fusions if row.kept for name in row.nodes}
    said = {row.node: row.reason for row in demo.report.rejections}
    merged = {node.name for node in layer if node.name.endswith("_bias")}
    assert {node.op for node in layer} >= {"aten.gelu.default", "aten.layer_norm.default"}
    left = [node.name for node in layer if node.name not in fused | merged]
    assert [name for name in left if not said.get(name)] == []
    assert len([node for node in layer if node.name in fused]) >= 5


def test_every_numerics_row_of_what_is_used_passed(demo: Demo) -> None:
    unused = {row.kernel for row in demo.report.fusions if not row.kept}
    failed = [row for row in demo.report.numerics if not row.passed and row.subject not in unused]
    assert failed == []


def test_each_kernel_is_verified_compiled_and_interpreted(demo: Demo) -> None:
    for kernel in {row.kernel for row in demo.report.fusions if row.kept}:
        cases = [row.case for row in demo.report.numerics if row.subject == kernel]
        assert any(case.startswith("CPU region, ") for case in cases)
        assert any(case.startswith("Triton, interpreted, ") for case in cases)


def test_the_whole_is_held_against_float64(demo: Demo) -> None:
    rows = [row for row in demo.report.numerics if row.subject == "all-MiniLM-L6-v2"]
    assert {row.measure for row in rows} == {"norm", "difference"}
    assert {row.case for row in rows} == {"output 0, 16 draws", "output 1, 16 draws"}


def test_similarities_are_unchanged(demo: Demo) -> None:
    before = demo.example._similarities(demo.encoder, demo.kwargs)
    after = demo.example._similarities(demo.fused, demo.kwargs)
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)
    assert demo.example._neighbours(after) == demo.example._neighbours(before)
    pairs = demo.example._neighbours(before)
    assert (pairs[0], pairs[2], pairs[4]) == (1, 3, 5)  # trained, not random, weights


def test_the_saved_report_is_valid_and_reads_back(demo: Demo) -> None:
    schema = json.loads((facts_folder() / "schema" / "report.schema.json").read_text())
    document = json.loads((demo.out / "report.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(document)
    assert read_report(demo.out) == demo.report


def test_kernels_are_there_to_read(demo: Demo) -> None:
    kernels = {path.stem: path.read_text() for path in (demo.out / "kernels").glob("*.py")}
    for row in demo.report.fusions:
        assert f"def {row.name}(" in kernels[row.kernel]
        assert "@triton.jit" in kernels[row.kernel]


def test_the_encoder_is_untouched(demo: Demo) -> None:
    after = demo.encoder.state_dict()
    assert all(torch.equal(after[name], value) for name, value in demo.state.items())
    assert all(p.requires_grad for p in demo.encoder.parameters())


def test_the_fused_encoder_is_called_like_the_encoder(demo: Demo) -> None:
    out, expected = demo.fused(**demo.kwargs), demo.encoder(**demo.kwargs)
    assert type(out) is type(expected)
    assert list(out) == list(expected)
    assert demo.fused.fallbacks == 0
    assert list(demo.fused.state_dict()) == list(demo.encoder.state_dict())


@pytest.mark.parametrize("architecture", [80, 90])
def test_every_emitted_kernel_compiles_for_gpus_without_spills(
    demo: Demo, architecture: int
) -> None:
    operators = {o.name: o for f in demo.fused.plan.fusions for o in f.judged.operators}
    assert len(operators) >= 5
    for name, operator in operators.items():
        source = operator.source
        kernel = load_kernel(operator.path, source.name).kernels[f"{source.name}_kernel"]
        used = compile_ahead(
            kernel,
            {**source.parameters, **source.constexprs},
            target=("cuda", architecture),
            num_warps=source.config.num_warps,
        )
        assert not used.spills, name
