"""Races of a place: what runs today, its kernels, and the library's own form, on equal inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from fusion_kernels.library import FusedOperator
from planner.fusion.candidate import Candidate, after, before, in_library
from planner.fusion.drawn import inputs_of
from planner.fusion.epilogue import Epilogue
from planner.fusion.subgraph import Subgraph
from planner.report.model import Trial
from planner.timing import Comparison, Pace, Timing, compare, interleaved

BEFORE, LIBRARY = "before", "library"
_ROUNDS = 100
_BUDGET_S = 4.0


@dataclass(frozen=True, slots=True)
class Course:
    """Where races are run and who sets the pace; `seed` draws the inputs."""

    device: str
    seed: int
    pace: Pace

    def race(self, contestants: Mapping[str, Subgraph]) -> dict[str, Timing]:
        """Time programs of the same inputs, in turn."""
        inputs = inputs_of(next(iter(contestants.values())), self.device, self.seed)
        calls = {name: _call(part, inputs) for name, part in contestants.items()}
        return interleaved(
            calls, self.device, rounds=_ROUNDS, warmup=5, budget_s=_BUDGET_S, pace=self.pace
        )


def race_place(
    ways: Sequence[Candidate],
    operators: Sequence[FusedOperator],
    course: Course,
    *,
    with_linears: bool,
    rival: Epilogue | None = None,
) -> dict[str, Timing]:
    """What runs today and each way to fuse a place, and the library's form where it has one
    (`rival`); with the linears whose bias is at stake, or without.
    """
    contestants = {BEFORE: before(ways[0], with_linears=with_linears)}
    for way, operator in zip(ways, operators, strict=True):
        contestants[way.way] = after(way, operator, with_linears=with_linears)
    if rival:
        contestants[LIBRARY] = in_library(ways[0], rival)
    return course.race(contestants)


def best_way(
    ways: Sequence[Candidate],
    operators: Sequence[FusedOperator],
    right: Sequence[int],
    course: Course,
) -> tuple[int, tuple[Trial, ...]]:
    """The way to use of those that are `right`, and the contest's trials: the bias leaves the GEMM
    only if that wins.
    """
    if len(right) == 1:
        return right[0], ()
    timings = race_place(ways, operators, course, with_linears=True)
    kernel, gemm = (timings[way.way] for way in ways)
    best = 0 if compare(gemm, kernel).verdict == "wins" else 1
    return best, tuple(trial_of(way.way, timings[way.way]) for way in ways)


def decide(candidate: Candidate, comparison: Comparison) -> tuple[bool, str]:
    """Whether the kernel stays, and why: one that saves traffic must not be slower, one that does
    not must win.
    """
    saves = candidate.traffic.saved_bytes > 0
    interval = shown(comparison)
    way = f", {candidate.way}" if candidate.linears else ""
    verdict = comparison.verdict
    if verdict == "wins" or (verdict == "not slower" and saves):
        return True, f"{verdict}: {interval}{way}"
    if verdict == "not slower":
        return False, f"saves no traffic and does not win: {interval}{way}"
    return False, f"slower than the operators it replaces: {interval}{way}"


def shown(comparison: Comparison) -> str:
    return f"{comparison.ratio:.2f}x, 95 % interval {comparison.low:.2f}-{comparison.high:.2f}"


def trial_of(name: str, timing: Timing) -> Trial:
    return Trial(name, timing.median_us, timing.p20_us, timing.p80_us)


def _call(subgraph: Subgraph, inputs: Sequence[torch.Tensor]) -> Callable[[], object]:
    def run() -> object:
        with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
            return subgraph.module(*inputs)

    return run
