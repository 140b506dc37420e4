"""A tuned kernel is verified as it will run, on a device that is not here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from planned_chain import DEVICE, Chain
from torch import Tensor

from planner.fusion import plan as planning
from planner.fusion.plan import FusionPlan, make_plan
from planner.pipeline import capture
from planner.progress import SILENT
from planner.report.model import NumericsRow, Trial
from planner.timing import Timing


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Plans for a CUDA device whose tuner gives the kernel another text, or raises. What is
    verified afterwards is listed, "default" or "tuned"; the tuned text is wrong if `wrong` says.
    """

    def prepare(*, raises: bool = False, wrong: bool = False) -> list[str]:
        seen: list[str] = []

        def tune(way: Any, operator: Any, kernels: Path, *_: Any) -> tuple[Trial, ...]:
            if raises:
                raise RuntimeError("out of resources")
            operator.use(replace(way.source), kernels / "tuned.py")
            return (Trial("block 512", 1.0, 1.0, 1.0),)

        def verify(_: Any, operator: Any, *__: Any) -> tuple[NumericsRow, ...]:
            is_tuned = operator.path.name == "tuned.py"
            seen.append("tuned" if is_tuned else "default")
            right = not (is_tuned and wrong)
            return (NumericsRow(operator.name, "float32", 0.0, 0.0, 1e-5, right, "element"),)

        monkeypatch.setattr(planning, "tune", tune)
        monkeypatch.setattr(planning, "verify_region", verify)
        monkeypatch.setattr(
            planning, "race_place", lambda *_, **__: {"before": _FAST, "fused": _FAST}
        )
        return seen

    return prepare


_FAST = Timing((1.0,) * 9)


def _plan_for_cuda(x: Tensor, folder: Path) -> FusionPlan:
    program = capture(Chain(lambda x: x.exp() * 2).eval(), (x,)).program
    return make_plan(program, DEVICE, "cuda:0", folder, max_fusions=None, seed=0, progress=SILENT)


def test_a_tuned_kernel_is_verified_once_as_it_will_run(
    on_cuda: Any, x: Tensor, tmp_path: Path
) -> None:
    seen = on_cuda()
    (fusion,) = _plan_for_cuda(x, tmp_path).fusions
    assert seen == ["tuned"]
    assert fusion.operator.path.name == "tuned.py"
    assert [trial.config for trial in fusion.judged.trials] == ["block 512"]


def test_a_tuned_kernel_that_is_wrong_gives_way_to_the_default(
    on_cuda: Any, x: Tensor, tmp_path: Path
) -> None:
    seen = on_cuda(wrong=True)
    plan = _plan_for_cuda(x, tmp_path)
    assert seen == ["tuned", "default"]
    assert plan.fusions[0].operator.path.name != "tuned.py"
    assert plan.fusions[0].kept
    assert all(row.passed for row in plan.numerics)


def test_a_kernel_that_cannot_be_tuned_is_verified_as_it_is(
    on_cuda: Any, x: Tensor, tmp_path: Path
) -> None:
    seen = on_cuda(raises=True)
    (fusion,) = _plan_for_cuda(x, tmp_path).fusions
    assert seen == ["default"]
    assert fusion.kept
    assert fusion.judged.trials == ()
