"""An operator that was taken apart, raced whole: by itself, and where kernels took some parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from planner.cost.devices import Device
from planner.fusion import contest, partly_taken
from planner.fusion import plan as planning
from planner.fusion.apply import fuse_as_planned
from planner.fusion.candidate import before
from planner.fusion.contest import Course
from planner.fusion.partly_taken import without_losing_parts
from planner.fusion.plan import FusionPlan, make_plan
from planner.graph.export import capture
from planner.passes.composites import put_together
from planner.passes.normalize import NORMALIZE
from planner.passes.runner import run_passes
from planner.passes.take_apart import take_apart
from planner.progress import SILENT
from planner.report.model import NumericsRow
from planner.timing import Timing

DEVICE = Device("cpu", "a processor", ("cpu",), {})
SCORES, CLASSES = torch.randn(9, 300), torch.randint(0, 300, (9,))


class Loss(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(x, y)


class Losses(nn.Module):
    def forward(self, x: Tensor, other: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return F.cross_entropy(x @ x.T, y), F.cross_entropy(other @ x.T, y)


class Norms(nn.Module):
    """A group norm that was an instance norm."""

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(F.instance_norm(x))


@pytest.fixture
def raced(monkeypatch: pytest.MonkeyPatch, uncompiled: Any) -> Any:
    """Medians by name that every race yields; all kernels pass; `seen` are the races by their
    contestants, each of which has run.
    """
    medians = {"before": 10.0, "fused": 5.0, "whole": 10.0}
    seen: list[tuple[str, ...]] = []

    def race(runs: Mapping[str, Callable[[], object]], *_: Any, **__: Any) -> dict[str, Timing]:
        results = [run() for run in runs.values()]
        for result in results[1:]:
            torch.testing.assert_close(result, results[0], rtol=1e-5, atol=1e-5)
        seen.append(tuple(runs))
        return {name: Timing((medians[name],) * 9) for name in runs}

    def passes(_: Any, operator: Any, *__: Any) -> tuple[NumericsRow, ...]:
        return (NumericsRow(operator.name, "float32", 0.0, 0.0, 1e-5, True, "element"),)

    monkeypatch.setattr(planning, "verify_region", passes)
    monkeypatch.setattr(contest, "interleaved", race)
    with uncompiled():
        yield medians, seen


def _planned(model: nn.Module, folder: Path, *args: Tensor) -> tuple[Any, FusionPlan]:
    program = capture(model.eval(), args).program
    run_passes(program, (*NORMALIZE, ("take_apart", take_apart)))
    plan = make_plan(program, DEVICE, "cpu", folder, max_fusions=None, seed=0, progress=SILENT)
    return program, plan


def _operators(program: Any) -> list[str]:
    return [str(n.target) for n in program.graph.nodes if n.op == "call_function"]


def test_kernels_that_lose_with_the_other_parts_are_put_back(raced: Any, tmp_path: Path) -> None:
    medians, _ = raced
    medians["whole"] = 1.0
    program, plan = _planned(Loss(), tmp_path, SCORES, CLASSES)
    assert plan.chosen
    found = without_losing_parts(plan, Course("cpu", 0, "host"))
    assert not found.chosen
    reasons = [fusion.reason for fusion in found.fusions]
    assert all("aten.cross_entropy_loss.default whole: 0.20x" in reason for reason in reasons)
    assert all("(alone: wins: 2.00x" in reason for reason in reasons)
    assert [item.stage for item in found.rejected].count("speed") >= len(plan.chosen)
    run_passes(program, [("fuse", fuse_as_planned(found)), ("put_together", put_together)])
    assert _operators(program) == ["aten.cross_entropy_loss.default"]


@pytest.mark.usefixtures("raced")
def test_kernels_that_do_not_lose_stay(tmp_path: Path) -> None:
    program, plan = _planned(Loss(), tmp_path, SCORES, CLASSES)
    found = without_losing_parts(plan, Course("cpu", 0, "host"))
    assert found.chosen == plan.chosen
    passes = [("fuse", fuse_as_planned(found)), ("put_together", put_together)]
    run_passes(program, passes)
    assert "aten.cross_entropy_loss.default" not in _operators(program)
    out = program.module()(SCORES, CLASSES)
    torch.testing.assert_close(out, F.cross_entropy(SCORES, CLASSES))


def test_equal_ones_are_raced_once(raced: Any, tmp_path: Path) -> None:
    _, seen = raced
    _, plan = _planned(Losses(), tmp_path, SCORES, SCORES.sin(), CLASSES % 9)
    assert len(partly_taken.partly_taken(plan)) == 2
    without_losing_parts(plan, Course("cpu", 0, "host"))
    assert seen.count(("whole", "fused")) == 1


@pytest.mark.usefixtures("raced")
def test_a_kernel_is_raced_with_the_operator_whose_parts_it_holds_all(tmp_path: Path) -> None:
    _, plan = _planned(Norms(), tmp_path, torch.randn(3, 6, 5, 7))
    (fusion,) = plan.chosen
    module = before(fusion.candidate, with_linears=False).module
    names = [str(n.target) for n in module.graph.nodes if n.op == "call_function"]
    assert names == ["aten.instance_norm.default", "aten.silu.default"]
    assert partly_taken.partly_taken(plan) == ()
