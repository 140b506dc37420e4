"""Which program comes back: decided from intervals, here made up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from planner.bench import Race
from planner.outcome import outcomes
from planner.report.model import Benchmark, NumericsRow
from planner.timing import Comparison


@dataclass(frozen=True)
class Plan:
    """Two places, both kept."""

    fusions: tuple[str, ...] = ("a", "b")
    chosen: tuple[str, ...] = ("a", "b")


def about(ratio: float) -> Comparison:
    return Comparison(ratio, ratio - 0.002, ratio + 0.002)


def race(fused: float, normalized: float) -> Race:
    against = {"fused": about(fused), "normalized": about(normalized)}
    return Race(Benchmark((), 9), against, about(fused / normalized))


def results(raced: Race, rows: tuple[NumericsRow, ...] = ()) -> list[str]:
    plan: Any = Plan()
    return [outcome.result for outcome in outcomes(plan, rows, raced)]


@pytest.mark.parametrize(
    ("fused", "normalized", "expected"),
    [
        (1.2, 1.1, ["fused", "original"]),
        (1.2, 1.206, ["fused", "original"]),
        (1.2, 1.25, ["normalized", "fused", "original"]),
        (0.9, 1.1, ["normalized", "original"]),
        (0.9, 0.9, ["original"]),
        (1.001, 1.001, ["original"]),
    ],
)
def test_kernels_are_given_up_for_more_than_the_noise(
    fused: float, normalized: float, expected: list[str]
) -> None:
    assert results(race(fused, normalized)) == expected


def test_a_fused_program_that_is_wrong_is_no_outcome() -> None:
    wrong = NumericsRow("net", "float32", 1.0, 0.0, 1e-5, False, "norm")
    assert results(race(1.5, 1.1), (wrong,)) == ["normalized", "original"]


def test_what_the_kernels_bring_is_said() -> None:
    plan: Any = Plan()
    first = outcomes(plan, (), race(1.2, 1.0))[0]
    assert "the kernels alone 1.200x" in first.reason
    assert "2 of 2 fusions kept" in first.reason
