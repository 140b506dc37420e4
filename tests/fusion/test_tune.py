"""Which configuration an operator runs after tuning, with a clock that the test sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from fusion_kernels.evaluate import evaluate
from fusion_kernels.library import FusedOperator, define
from planner.cost.devices import Device
from planner.fusion import tune as tuning
from planner.fusion.candidate import Candidate
from planner.fusion.places import find_places
from planner.fusion.plan import write_kernel
from planner.pipeline import capture
from planner.timing import Timing


class Chain(nn.Module):
    """A chain that one kernel replaces."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return gelu(x + y) * 2


@pytest.fixture
def candidate() -> Candidate:
    program = capture(Chain().eval(), (torch.randn(6, 40), torch.randn(6, 40))).program
    ((way,),), _ = find_places(program, Device("cpu", "a processor", ("cpu",), {}), "cpu")
    return way


@pytest.fixture
def operator(candidate: Candidate, tmp_path: Path) -> FusedOperator:
    return define(candidate.source, write_kernel(candidate.source, tmp_path))


@pytest.fixture
def loaded(candidate: Candidate, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that were loaded, in order; they run operation by operation."""
    texts: list[str] = []

    def load(text: str, _: str) -> Any:
        texts.append(text)

        def launcher(*tensors: Tensor) -> Tensor:
            out = evaluate(candidate.lowered.region, tensors)[0]
            return out * 1.01 if "8 warps" in text else out

        return SimpleNamespace(launcher=launcher, text=text)

    monkeypatch.setattr(tuning, "load_kernel", load)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a stand-in")
    return texts


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that were compiled side by side."""
    texts: list[str] = []

    def compiled(launches: Any) -> None:
        texts.extend(kernel.text for kernel, _ in launches)

    monkeypatch.setattr(tuning, "compile_side_by_side", compiled)
    return texts


def _clock(fastest: int) -> Callable[..., dict[str, Timing]]:
    def interleaved(calls: Any, *_: Any, **__: Any) -> dict[str, Timing]:
        return {
            name: Timing((1.0 if n == fastest else 2.0,) * 5) for n, name in enumerate(list(calls))
        }

    return interleaved


def _tuned(candidate: Candidate, operator: FusedOperator, folder: Path) -> Sequence[Any]:
    return tuning.tune(candidate, operator, folder, "cpu", 0)


@pytest.mark.parametrize("fastest", [0, 1])
def test_the_text_that_was_the_fastest_is_the_one_that_runs(
    candidate: Candidate,
    operator: FusedOperator,
    loaded: list[str],
    together: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fastest: int,
) -> None:
    """Letter for letter: Triton compiles a text once, unless its lines have moved."""
    monkeypatch.setattr(tuning, "interleaved", _clock(fastest))
    trials = _tuned(candidate, operator, tmp_path)
    assert operator.source.text == loaded[fastest] == operator.path.read_text()
    assert f"tuned on   a stand-in, {trials[0].config}" in operator.source.text
    assert together == loaded


def test_a_wrong_configuration_is_left_out(
    candidate: Candidate,
    operator: FusedOperator,
    loaded: list[str],
    together: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuning, "interleaved", _clock(0))
    trials = _tuned(candidate, operator, tmp_path)
    wrong = [text for text in loaded if "8 warps" in text]
    assert wrong
    assert len(trials) == len(together) - len(wrong)
    assert not any("8 warps" in trial.config for trial in trials)
