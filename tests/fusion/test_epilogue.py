"""The library's product with an activation: where it means the same, and what comes of a race."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn.functional import gelu

from planner.cost.devices import Device
from planner.fusion import contest
from planner.fusion import plan as planning
from planner.fusion.apply import fuse_as_planned
from planner.fusion.epilogue import Epilogue, epilogue_of, use_epilogue
from planner.fusion.plan import FusionPlan, make_plan
from planner.passes import activated_linear
from planner.passes.linear_bias import SPLIT, merge_linear_bias, split_linear_bias
from planner.passes.runner import run_passes
from planner.pipeline import capture
from planner.progress import SILENT
from planner.report.model import NumericsRow
from planner.timing import Timing

FORM = torch.ops.aten._addmm_activation.default
UNKNOWN = Device("unknown", "", (), {})


class Layer(nn.Module):
    def __init__(self, function: Any, wide: int = 24) -> None:
        super().__init__()
        self.fc, self.function = nn.Linear(16, wide), function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.fc(x))


def _split(function: Any, x: Tensor, dtype: torch.dtype = torch.float32) -> Any:
    program = capture(Layer(function).eval().to(dtype), (x.to(dtype),)).program
    run_passes(program, (("split", split_linear_bias),))
    return program


def _found(function: Any, device: str = "cpu", x: Tensor | None = None) -> Epilogue | None:
    program = _split(function, torch.randn(4, 16) if x is None else x)
    nodes: list[fx.Node] = [n for n in program.graph.nodes if SPLIT in n.meta]
    return epilogue_of([*nodes[:1], *nodes[0].users], device)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_relu_is_an_epilogue_everywhere(device: str) -> None:
    found = _found(torch.relu, device)
    assert found is not None
    assert not found.gelu


@pytest.mark.parametrize(("device", "form"), [("cpu", "none"), ("cuda:0", "tanh")])
def test_a_gelu_is_one_where_the_library_means_that_form(device: str, form: str) -> None:
    other = {"none": "tanh", "tanh": "none"}[form]
    assert _found(lambda h: gelu(h, approximate=form), device) is not None
    assert _found(lambda h: gelu(h, approximate=other), device) is None


@pytest.mark.parametrize(
    "function",
    [
        torch.tanh,
        torch.sigmoid,
        lambda h: (torch.relu(h), h.exp()),  # the sum is read elsewhere
    ],
)
def test_other_activations_and_sums_read_elsewhere_have_none(function: Any) -> None:
    assert _found(function) is None


def test_rows_with_gaps_and_empty_ones_have_none() -> None:
    assert _found(torch.relu, x=torch.randn(4, 32)[:, ::2]) is None
    assert _found(torch.relu, x=torch.randn(0, 16)) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(4, 16), (1, 16), (2, 257, 16), (16,)])
@pytest.mark.parametrize("function", [torch.relu, gelu])
def test_the_library_s_form_computes_the_same(function: Any, shape: Any, dtype: Any) -> None:
    x = torch.randn(shape)
    program = _split(function, x, dtype)
    nodes = [n for n in program.graph.nodes if SPLIT in n.meta]
    found = epilogue_of([*nodes, *nodes[0].users], "cpu")
    assert found is not None
    value = found.activation.meta["val"]
    use_epilogue(program.graph, found)
    program.graph.lint()
    program.graph_module.recompile()
    assert FORM in [n.target for n in program.graph.nodes]
    assert not any(n.target is torch.ops.aten.linear.default for n in program.graph.nodes)
    weight, bias = (p.detach() for p in program.state_dict.values())
    (out,) = program.graph_module(weight, bias, x.to(dtype))
    wide = (t.double() for t in (x.to(dtype), weight, bias))
    truth = function(torch.nn.functional.linear(*wide)).to(dtype)
    assert (out.shape, out.stride(), out.dtype) == (value.shape, value.stride(), dtype)
    torch.testing.assert_close(
        out, truth, rtol=2e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5
    )


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Every kernel is right, and every race yields these medians, having run each once."""
    medians = {"before": 10.0, "bias in the kernel": 5.0, "bias in the GEMM": 5.0, "library": 2.0}

    def race(runs: Mapping[str, Callable[[], object]], *_: Any, **__: Any) -> dict[str, Timing]:
        for run in runs.values():
            run()
        return {name: Timing((medians[name],) * 9) for name in runs}

    def right(_: Any, operator: Any, *__: Any) -> tuple[NumericsRow, ...]:
        return (NumericsRow(operator.name, "float32", 0.0, 0.0, 1e-5, True, "element"),)

    monkeypatch.setattr(planning, "verify_region", right)
    monkeypatch.setattr(contest, "interleaved", race)
    return medians


def _planned(function: Any, x: Tensor, folder: Path) -> tuple[Any, FusionPlan]:
    program = _split(function, x)
    plan = make_plan(program, UNKNOWN, "cpu", folder, max_fusions=None, seed=0, progress=SILENT)
    passes = (("fuse", fuse_as_planned(plan)), ("merge", merge_linear_bias))
    run_passes(program, passes)
    return program, plan


@pytest.mark.parametrize("function", [torch.relu, gelu])
def test_the_library_s_form_is_used_where_it_beats_the_kernel(
    times: dict[str, float], tmp_path: Path, function: Any
) -> None:
    x = torch.randn(4, 16)
    program, plan = _planned(function, x, tmp_path)
    assert len(plan.by_library) == 1
    assert plan.chosen == ()
    (fusion,) = plan.fusions
    beaten = times["bias in the kernel"] / times["library"]
    assert f"the library's product with this activation is {beaten:.2f}x" in fusion.reason
    assert "library" in [trial.config for trial in fusion.judged.trials]
    assert [r.reason for r in plan.rejected if r.stage == "speed"] == [fusion.reason]
    assert FORM in [n.target for n in program.graph.nodes]
    weight, bias = (p.detach() for p in program.state_dict.values())
    (out,) = program.graph_module(weight, bias, x)
    torch.testing.assert_close(out, function(torch.nn.functional.linear(x, weight, bias)))


def test_kernels_before_and_after_it_stand_as_well(times: dict[str, float], tmp_path: Path) -> None:
    """The product makes the last region another one, though it reads what the library computes."""
    times["fused"] = 5.0

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(self.fc((x * 2).exp()))
            return (h @ h.T @ h).sin() * h

    model, x = Both().eval(), torch.randn(4, 16)
    program = capture(model, (x,)).program
    run_passes(program, (("split", split_linear_bias),))
    plan = make_plan(program, UNKNOWN, "cpu", tmp_path, max_fusions=None, seed=0, progress=SILENT)
    assert (len(plan.chosen), len(plan.by_library)) == (2, 1)
    run_passes(program, (("fuse", fuse_as_planned(plan)), ("merge", merge_linear_bias)))
    weight, bias = (p.detach() for p in program.state_dict.values())
    (out,) = program.graph_module(weight, bias, x)
    torch.testing.assert_close(out, model(x), rtol=1e-4, atol=1e-4)


def test_the_kernel_stays_where_the_library_does_not_beat_it(
    times: dict[str, float], tmp_path: Path
) -> None:
    times["library"] = 5.0
    program, plan = _planned(torch.relu, torch.randn(4, 16), tmp_path)
    assert len(plan.chosen) == 1
    assert plan.by_library == ()
    assert FORM not in [n.target for n in program.graph.nodes]


def test_where_the_kernel_is_slow_the_library_is_raced_with_what_runs_today(
    times: dict[str, float], tmp_path: Path
) -> None:
    times.update({"bias in the kernel": 30.0, "bias in the GEMM": 30.0, "library": 15.0})
    _, plan = _planned(torch.relu, torch.randn(4, 16), tmp_path)
    assert plan.by_library == plan.chosen == ()
    times["library"] = 8.0
    _, plan = _planned(torch.relu, torch.randn(4, 16), tmp_path)
    assert len(plan.by_library) == 1


def test_a_region_that_is_more_has_no_such_rival(times: dict[str, float], tmp_path: Path) -> None:
    """It saves more than the activation's pass."""
    _, plan = _planned(lambda h: torch.relu(h) * 2 + 1, torch.randn(4, 16), tmp_path)
    assert len(plan.chosen) == 1
    assert times["library"] < times["bias in the kernel"]


def test_a_library_that_loses_a_nan_does_not_race(
    times: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loses(bias: Tensor, rows: Tensor, turned: Tensor, *, use_gelu: bool) -> Tensor:
        return torch.addmm(bias, rows, turned).nan_to_num().relu() + use_gelu

    monkeypatch.setattr(activated_linear.aten, "_addmm_activation", loses)
    times["library"] = 1.0
    program, plan = _planned(torch.relu, torch.randn(4, 16), tmp_path)
    assert not plan.by_library
    assert FORM not in {node.target for node in program.graph.nodes}
