"""The end-to-end race: what it calls, what its rows say, and a rival that fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from planner import bench
from planner.bench import race
from planner.timing import Timing

X = torch.randn(4, 8)
MEDIANS = {"eager": 10.0, "compile_default": 8.0, "normalized": 5.0, "fused": 4.0}


class Counting(nn.Module):
    """Counts its calls and remembers what they saw."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.calls = 0
        self.grad_modes: set[bool] = set()
        self.lengths: set[int] = set()

    def forward(self, x: Tensor, cache: Any = None) -> Tensor:
        self.calls += 1
        self.grad_modes.add(torch.is_grad_enabled())
        if cache is not None:
            self.lengths.add(len(cache))
            cache.append(x)
        out: Tensor = self.fc(x)
        return out


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def interleaved(calls: Mapping[str, Callable[[], object]], *_: Any, **__: Any) -> Any:
        return {name: Timing((MEDIANS[name],) * 7) for name in calls}

    monkeypatch.setattr(bench, "interleaved", interleaved)


@pytest.mark.usefixtures("made_up")
def test_rows_say_how_each_stands_to_eager() -> None:
    raced = race(Counting(), {"fused": Counting()}, (X,), {}, "cpu", compile_peer=False)
    rows = {row.name: row for row in raced.benchmark.rows}
    assert list(rows) == ["eager", "fused"]
    assert rows["fused"].median_us == 4.0
    assert rows["fused"].speedup_vs_eager == 2.5
    assert rows["eager"].speedup_vs_eager == 1.0
    assert raced.benchmark.rounds == 7
    assert raced.benchmark.ratio_low == raced.benchmark.ratio_high == 2.5
    assert raced.against_eager["fused"].verdict == "wins"
    assert raced.kernels is None


@pytest.mark.usefixtures("made_up")
def test_kernels_are_held_against_the_program_without_them() -> None:
    ours = {"normalized": Counting(), "fused": Counting()}
    raced = race(Counting(), ours, (X,), {}, "cpu", compile_peer=False)
    assert [row.name for row in raced.benchmark.rows] == ["eager", "normalized", "fused"]
    assert raced.kernels is not None
    assert raced.kernels.ratio == 1.25
    assert raced.against_eager["normalized"].ratio == 2.0
    assert raced.benchmark.ratio_low == 2.5


@pytest.mark.usefixtures("made_up")
def test_without_a_fused_module_there_is_nothing_to_compare() -> None:
    raced = race(Counting(), {}, (X,), {}, "cpu", compile_peer=False)
    assert [row.name for row in raced.benchmark.rows] == ["eager"]
    assert raced.against_eager == {}
    assert raced.benchmark.ratio_low is None


def test_a_real_race_runs_everything_equally_often_without_grad() -> None:
    eager, fused = Counting(), Counting()
    raced = race(eager, {"fused": fused}, (), {"x": X}, "cpu", compile_peer=False, budget_s=0.5)
    assert eager.calls == fused.calls > 5
    assert eager.grad_modes == fused.grad_modes == {False}
    for row in raced.benchmark.rows:
        assert row.median_us is not None
        assert row.p20_us is not None
        assert row.p80_us is not None
        assert 0 < row.p20_us <= row.median_us <= row.p80_us
        assert row.cold_s is None  # both have run before
        assert row.peak_bytes is None  # unknown on CPU, and not 0


def test_a_container_that_a_forward_grows_is_new_in_every_call() -> None:
    model, cache = Counting(), [X]
    race(model, {}, (X, cache), {}, "cpu", compile_peer=False, budget_s=0.1)
    assert model.lengths == {1}
    assert len(cache) == 1


@pytest.mark.usefixtures("made_up")
def test_torch_compile_takes_part_with_its_compile_time() -> None:
    torch._dynamo.reset()
    raced = race(nn.Linear(8, 8).eval(), {}, (X,), {}, "cpu", compile_peer=True)
    (row,) = [row for row in raced.benchmark.rows if row.name == "compile_default"]
    assert row.cold_s is not None
    assert row.cold_s > 0.01
    assert row.speedup_vs_eager == 1.25
    assert row.reason == ""


@pytest.mark.usefixtures("made_up")
def test_a_rival_that_does_not_compile_keeps_a_row_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_: nn.Module) -> Any:
        def call(*__: Any) -> Any:
            raise RuntimeError("no C++ compiler\nand a long story")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    raced = race(Counting(), {"fused": Counting()}, (X,), {}, "cpu", compile_peer=True)
    (row,) = [row for row in raced.benchmark.rows if row.name == "compile_default"]
    assert row.reason == "torch.compile failed: RuntimeError: no C++ compiler"
    assert row.median_us is row.cold_s is row.speedup_vs_eager is None
    assert {r.name for r in raced.benchmark.rows} == {"eager", "fused", "compile_default"}
