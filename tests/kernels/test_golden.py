"""The text of emitted kernels, line for line: read the diff of tests/golden/kernels before you
commit it.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fusion_kernels.emit.source import emit
from fusion_kernels.evaluate import evaluate
from fusion_kernels.inputs import CASES, InputSpec, draw_case
from fusion_kernels.ir import Input
from fusion_kernels.load import interpreted

FOLDER = Path(__file__).parents[1] / "golden" / "kernels"


TABLE = 50
"""Rows of the tables that golden kernels look up in."""


def _one_sample(item: Input) -> tuple[int, ...]:
    """The input's own sizes, for a batch of one."""
    sizes = (1 if d == 0 and item.shape[0] > 1 else n for d, n in enumerate(item.shape))
    return tuple(sizes)[len(item.shape) - item.rank :]


def text_of(golden_kernels, golden: str) -> str:
    made = golden_kernels[golden]
    return emit(made.traced.region, made.provenance).text


def test_the_text_is_as_committed(golden, golden_kernels, refresh_golden):
    path, text = FOLDER / f"{golden}.py", text_of(golden_kernels, golden)
    if refresh_golden:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


def test_no_golden_file_is_left_over(golden_kernels):
    assert {path.stem for path in FOLDER.glob("*.py")} == set(golden_kernels)


@pytest.fixture(scope="module")
def formatted(golden_kernels, tmp_path_factory) -> Path:
    """All kernels in a folder, run through ruff's formatter."""
    folder = tmp_path_factory.mktemp("kernels")
    for name in golden_kernels:
        (folder / f"{name}.py").write_text(text_of(golden_kernels, name), encoding="utf-8")
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", "100"]
    subprocess.run([*command, str(folder)], check=True, capture_output=True)
    return folder


def test_a_formatter_finds_nothing_to_change(golden, golden_kernels, formatted):
    assert (formatted / f"{golden}.py").read_text() == text_of(golden_kernels, golden)


def test_the_text_is_a_module_of_documented_functions(golden, golden_kernels):
    tree = ast.parse(text_of(golden_kernels, golden))
    assert ast.get_docstring(tree)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    name = golden_kernels[golden].traced.region.name
    assert [function.name for function in functions][-2:] == [f"{name}_kernel", name]


def test_the_committed_kernel_computes_its_region(golden, golden_kernels):
    """The file as it lies in the repository, in the interpreter, at one small batch."""
    region = golden_kernels[golden].traced.region
    looked_up = any(item.table for item in region.inputs)
    specs = [
        InputSpec(
            (*_one_sample(item), *((TABLE,) if item.table else ())),
            getattr(torch, item.dtype),
            bound=TABLE if looked_up and item.dtype == "int64" else None,
        )
        for item in region.inputs
    ]
    tensors = draw_case(specs, CASES[0], seed=0)
    outs = interpreted(FOLDER / f"{golden}.py", region.name)(*tensors)
    expected = evaluate(region, tensors)
    for out, wanted in zip((outs,) if len(expected) == 1 else outs, expected, strict=True):
        step = 1e-5 if out.dtype.itemsize > 2 else 2**-7
        if wanted.dtype.is_floating_point and wanted.dtype.itemsize == 1:
            assert out.dtype is wanted.dtype
            out, wanted, step = out.float(), wanted.float(), torch.finfo(wanted.dtype).eps
        torch.testing.assert_close(out, wanted, rtol=step, atol=1e-5)
