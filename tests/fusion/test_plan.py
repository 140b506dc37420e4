"""What is kept: decided from numerics first, then from times, which here are made up."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from planned_chain import DEVICE, Chain
from torch import Tensor, nn
from torch.nn.functional import gelu

from planner.fusion import contest
from planner.fusion import plan as planning
from planner.fusion.plan import FusionPlan, make_plan
from planner.fusion.rows import fusion_rows, rejection_rows
from planner.passes.linear_bias import split_linear_bias
from planner.passes.runner import run_passes
from planner.pipeline import capture
from planner.progress import SILENT
from planner.report.model import NumericsRow
from planner.timing import Timing, compare

WINS = {
    "before": 10.0,
    "fused": 5.0,
    "bias in the kernel": 5.0,
    "bias in the GEMM": 5.0,
    "library": 5.0,
}


SLOWER = {name: 10.0 if name == "before" else 20.0 for name in WINS}


EVEN = dict.fromkeys(WINS, 10.0)


class Layers(nn.Module):
    """GELU after a linear, then a residual and a norm, `count` times with equal shapes."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleDict({"fc": nn.Linear(8, 8), "norm": nn.LayerNorm(8)}) for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer["norm"](gelu(layer["fc"](x)) @ layer["fc"].weight + x)
        return x


@pytest.fixture
def x() -> Tensor:
    return torch.randn(4, 8)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which kernels were verified; every one passes."""
    seen: list[str] = []

    def passes(lowered: Any, operator: Any, *_: Any) -> tuple[NumericsRow, ...]:
        seen.append(lowered.region.name)
        return (NumericsRow(operator.name, "float32", 0.0, 0.0, 1e-5, True, "element"),)

    monkeypatch.setattr(planning, "verify_region", passes)
    return seen


@pytest.fixture
def raced(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Medians by name that every race yields from now on, without noise."""
    medians = dict(WINS)

    def race(runs: Mapping[str, Callable[[], object]], *_: Any, **__: Any) -> dict[str, Timing]:
        for run in runs.values():
            run()
        return {name: Timing((medians[name],) * 9) for name in runs}

    monkeypatch.setattr(contest, "interleaved", race)
    return medians


def _plan(model: nn.Module, x: Tensor, folder: Path, most: int | None = None) -> FusionPlan:
    program = capture(model.eval(), (x,)).program
    run_passes(program, (("split", split_linear_bias),))
    return make_plan(program, DEVICE, "cpu", folder, max_fusions=most, seed=0, progress=SILENT)


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize(
    ("medians", "kept", "said"),
    [
        (WINS, True, "wins: 2.00x, 95 % interval 2.00-2.00"),
        (EVEN, True, "not slower: 1.00x"),
        (SLOWER, False, "slower than the operators it replaces: 0.50x"),
    ],
)
def test_a_kernel_that_saves_traffic_is_kept_unless_slower(
    raced: dict[str, float], x: Tensor, tmp_path: Path, medians: Any, kept: bool, said: str
) -> None:
    raced.update(medians)
    plan = _plan(Chain(lambda x: x.exp() * 2), x, tmp_path)
    (fusion,) = plan.fusions
    assert fusion.kept is kept
    assert said in fusion.reason
    assert len(plan.chosen) == kept


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize(("medians", "kept"), [(WINS, True), (EVEN, False), (SLOWER, False)])
def test_a_kernel_that_saves_none_is_kept_only_if_it_wins(
    raced: dict[str, float], x: Tensor, tmp_path: Path, medians: Any, kept: bool
) -> None:
    """Both values are read elsewhere: as many bytes as before, less one read."""
    raced.update(medians)
    plan = _plan(Chain(lambda x: x.exp() * 2), x, tmp_path)
    (fusion,) = plan.fusions
    saved = contest.decide(_without_saving(fusion.candidate), compare(*_timings(medians)))
    assert saved[0] is kept
    if medians is EVEN:
        assert "saves no traffic and does not win" in saved[1]


def _timings(medians: Mapping[str, float]) -> tuple[Timing, Timing]:
    return Timing((medians["before"],) * 9), Timing((medians["fused"],) * 9)


def _without_saving(candidate: Any) -> Any:

    traffic = replace(candidate.traffic, bytes_before=candidate.traffic.bytes_after)
    return replace(candidate, traffic=traffic)


@pytest.mark.usefixtures("calls")
def test_what_is_dropped_is_a_rejection_with_its_reason(
    raced: dict[str, float], x: Tensor, tmp_path: Path
) -> None:
    raced.update(SLOWER)
    plan = _plan(Chain(lambda x: x.exp() * 2), x, tmp_path)
    rows = [row for row in rejection_rows(plan.rejected) if row.stage == "speed"]
    assert [(row.rule, row.node) for row in rows] == [("pointwise_chain", "mul")]
    assert "slower" in rows[0].reason


@pytest.mark.usefixtures("raced")
def test_equal_kernels_are_judged_once_and_all_rows_are_there(
    calls: list[str], x: Tensor, tmp_path: Path
) -> None:
    plan = _plan(Layers(3), x, tmp_path)
    assert sorted(calls) == ["add_layer_norm", "bias_gelu", "gelu"]
    assert [f.candidate.plan.rule for f in plan.fusions] == [
        *("gelu_residual", "add_layer_norm"),
    ] * 3
    assert len(plan.chosen) == 6
    assert len(plan.numerics) == 3
    assert len({row.kernel for row in fusion_rows(plan)}) == 2


@pytest.mark.usefixtures("calls", "raced")
@pytest.mark.parametrize("most", [0, 1, 4, 100])
def test_max_fusions_keeps_the_first_n(x: Tensor, tmp_path: Path, most: int) -> None:
    plan = _plan(Layers(3), x, tmp_path, most)
    kept = [fusion.kept for fusion in plan.fusions]
    assert kept == [True] * min(most, 6) + [False] * max(6 - most, 0)
    assert all(f"--max-fusions {most}" in f.reason for f in plan.fusions if not f.kept)


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize(
    ("kernel", "gemm", "way"),
    [
        (5.0, 10.0, "bias in the kernel"),
        (10.0, 5.0, "bias in the GEMM"),
        (10.0, 10.0, "bias in the GEMM"),
    ],
)
def test_the_bias_leaves_the_gemm_only_if_that_wins(
    raced: dict[str, float], x: Tensor, tmp_path: Path, kernel: float, gemm: float, way: str
) -> None:
    raced.update({"before": 20.0, "bias in the kernel": kernel, "bias in the GEMM": gemm})
    raced["library"] = 20.0
    plan = _plan(Layers(1), x, tmp_path)
    fusion = plan.fusions[0]
    assert fusion.candidate.way == way
    assert fusion.reason.endswith(way)
    assert {t.config for t in fusion.judged.trials} == {"bias in the kernel", "bias in the GEMM"}


@pytest.mark.usefixtures("raced")
def test_a_wrong_way_is_not_raced_and_the_other_is_used(
    monkeypatch: pytest.MonkeyPatch, x: Tensor, tmp_path: Path
) -> None:
    def verify(lowered: Any, operator: Any, *_: Any) -> tuple[NumericsRow, ...]:
        right = lowered.region.name != "bias_gelu"
        return (NumericsRow(operator.name, "float32", 1.0, 0.0, 1e-5, right, "element"),)

    monkeypatch.setattr(planning, "verify_region", verify)
    plan = _plan(Layers(1), x, tmp_path)
    assert plan.fusions[0].kept
    assert plan.fusions[0].candidate.way == "bias in the GEMM"
    assert plan.fusions[0].judged.trials == ()


def test_a_kernel_that_is_wrong_is_never_raced_nor_kept(
    monkeypatch: pytest.MonkeyPatch, x: Tensor, tmp_path: Path
) -> None:
    def verify(_: Any, operator: Any, *__: Any) -> tuple[NumericsRow, ...]:
        good = NumericsRow(operator.name, "float32", 0.0, 0.0, 1e-5, True, "row", "one row")
        bad = NumericsRow(operator.name, "float32", 1.0, 0.0, 1e-5, False, "element", "nan")
        return good, bad

    def no_race(*_: Any, **__: Any) -> Any:
        raise AssertionError("a wrong kernel was raced")

    monkeypatch.setattr(planning, "verify_region", verify)
    monkeypatch.setattr(contest, "interleaved", no_race)
    plan = _plan(Chain(lambda x: x.exp() * 2), x, tmp_path)
    (fusion,) = plan.fusions
    assert not fusion.kept
    assert plan.chosen == ()
    assert fusion.judged.before is fusion.judged.after is None
    (rejection,) = [r for r in plan.rejected if r.stage == "numerics"]
    assert rejection.reason == "numerics: element is over its limit (nan)"
    (row,) = fusion_rows(plan)
    assert (row.kept, row.measured_us) == (False, None)


@pytest.mark.usefixtures("raced")
def test_a_kernel_that_raises_is_left_out_and_the_others_stay(
    monkeypatch: pytest.MonkeyPatch, x: Tensor, tmp_path: Path
) -> None:
    def verify(lowered: Any, operator: Any, *_: Any) -> tuple[NumericsRow, ...]:
        if "exp" in lowered.region.name:
            raise AssertionError("expected size 1==16\nand a long story")
        return (NumericsRow(operator.name, "float32", 0.0, 0.0, 1e-5, True, "element"),)

    monkeypatch.setattr(planning, "verify_region", verify)
    plan = _plan(Chain(lambda x: ((x.exp() * 2) @ x.t(), x.sin() * 3)), x, tmp_path)
    assert [fusion.kept for fusion in plan.fusions] == [False, True]
    assert plan.fusions[0].reason == "it does not run: AssertionError: expected size 1==16"


def _slow(monkeypatch: pytest.MonkeyPatch, is_slow: Callable[[str], bool]) -> None:
    """From now on the kernels that `is_slow` says by name take twice the time of the rest."""

    def race(ways: Any, *_: Any, **__: Any) -> dict[str, Timing]:
        slow = is_slow(ways[0].lowered.region.name)
        return {"before": Timing((10.0,) * 9), "fused": Timing((20.0 if slow else 5.0,) * 9)}

    monkeypatch.setattr(planning, "race_place", race)


@pytest.mark.usefixtures("calls")
def test_the_halves_of_a_slow_region_are_tried_and_the_report_says_so(
    monkeypatch: pytest.MonkeyPatch, x: Tensor, tmp_path: Path
) -> None:
    _slow(monkeypatch, lambda name: name == "exp_tanh_sin_and_1_more")
    plan = _plan(Chain(lambda x: x.exp().tanh().sin().cos()), x, tmp_path)
    assert {f.candidate.lowered.region.name: f.kept for f in plan.fusions} == {
        "exp_tanh": True,
        "exp_tanh_sin_and_1_more": False,
        "sin_cos": True,
    }
    (row,) = [row for row in rejection_rows(plan.rejected) if row.stage == "speed"]
    assert row.reason.startswith("slower than the operators it replaces: 0.50x")
    assert row.reason.endswith("; tried in its place: exp_tanh, sin_cos")
    assert len(rejection_rows(plan.rejected)) == 1


@pytest.mark.usefixtures("raced")
def test_the_parts_of_a_wrong_region_are_tried_too(
    monkeypatch: pytest.MonkeyPatch, x: Tensor, tmp_path: Path
) -> None:
    def verify(lowered: Any, operator: Any, *_: Any) -> tuple[NumericsRow, ...]:
        right = "sin" not in lowered.region.name
        return (NumericsRow(operator.name, "float32", 1.0, 0.0, 1e-5, right, "element", "nan"),)

    monkeypatch.setattr(planning, "verify_region", verify)
    plan = _plan(Chain(lambda x: x.exp().tanh().sin().cos()), x, tmp_path)
    assert [f.candidate.lowered.region.name for f in plan.chosen] == ["exp_tanh"]
    assert all(f.reason.startswith("numerics") for f in plan.fusions if not f.kept)


@pytest.mark.usefixtures("calls")
def test_what_is_kept_never_overlaps(
    monkeypatch: pytest.MonkeyPatch, x: Tensor, tmp_path: Path
) -> None:
    """Whatever loses, at the end no node is in two kernels and all can run."""
    for seed in range(6):
        own = random.Random(seed)
        fate: dict[str, bool] = {}
        _slow(monkeypatch, lambda name: fate.setdefault(name, own.random() < 0.5))  # noqa: B023
        model = Chain(lambda x: ((h := x.exp().tanh()) @ h.T @ x * h).sin().cos() + x.sin() * h)
        plan = _plan(model, x, tmp_path)
        nodes = [name for fusion in plan.chosen for name in fusion.candidate.nodes]
        assert len(nodes) == len(set(nodes))


@pytest.mark.usefixtures("calls", "raced")
def test_kernels_are_written_under_their_names(x: Tensor, tmp_path: Path) -> None:
    plan = _plan(Layers(1), x, tmp_path / "kernels")
    for fusion in plan.fusions:
        path = tmp_path / "kernels" / f"{fusion.operator.name}.py"
        assert path.read_text() == fusion.candidate.source.text


@pytest.mark.usefixtures("calls", "raced")
def test_rows_tell_place_times_and_prediction(x: Tensor, tmp_path: Path) -> None:
    row = fusion_rows(_plan(Layers(1), x, tmp_path))[1]
    assert (row.rule, row.module, row.kept) == ("add_layer_norm", "layers.0.norm", True)
    assert row.nodes == ("add", "layer_norm")
    assert (row.before_us, row.measured_us, row.predicted_us) == (10.0, 5.0, None)


@pytest.mark.usefixtures("calls", "raced")
def test_nothing_to_fuse_gives_an_empty_plan(x: Tensor, tmp_path: Path) -> None:
    plan = _plan(nn.Linear(8, 8), x, tmp_path)
    assert plan.fusions == plan.chosen == plan.numerics == ()
