"""Chooses what to fuse: every region emitted, verified and raced; the slower and the wrong
rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from fusion_kernels.emit.source import KernelSource
from fusion_kernels.inputs import CASES, InputSpec, draw_case
from fusion_kernels.library import FusedOperator, define
from fusion_kernels.rule import Mismatch
from fusion_kernels.rules import RULES
from planner.cost.devices import Device
from planner.fusion.candidate import Candidate, candidate_of, race
from planner.fusion.lower import input_hint
from planner.fusion.match import match_rules
from planner.fusion.regions import find_regions
from planner.fusion.subgraph import Subgraph
from planner.fusion.tune import tune
from planner.progress import Progress
from planner.report.model import NumericsRow, Trial
from planner.timing import Comparison, Timing, compare, interleaved
from planner.verify import verify_region

_ROUNDS = 60
_BUDGET_S = 3.0


@dataclass(frozen=True, slots=True)
class Fusion:
    """A candidate with its operator and what was measured. `reason` says why it is kept or not."""

    candidate: Candidate
    operator: FusedOperator
    before: Timing | None
    after: Timing | None
    comparison: Comparison | None
    trials: tuple[Trial, ...]
    kept: bool
    reason: str


@dataclass(frozen=True, slots=True)
class FusionPlan:
    """All candidates in graph order, kept or not, the places that did not become one, the
    numerics.
    """

    fusions: tuple[Fusion, ...]
    rejected: tuple[Mismatch, ...]
    numerics: tuple[NumericsRow, ...]

    @property
    def chosen(self) -> tuple[Fusion, ...]:
        return tuple(fusion for fusion in self.fusions if fusion.kept)


@dataclass(frozen=True, slots=True)
class _Judged:
    """What holds for every place with the same kernel."""

    operator: FusedOperator
    numerics: tuple[NumericsRow, ...]
    before: Timing | None
    after: Timing | None
    comparison: Comparison | None
    trials: tuple[Trial, ...]
    kept: bool
    reason: str


def find_candidates(
    program: ExportedProgram, device: Device, torch_device: str
) -> tuple[tuple[Candidate, ...], tuple[Mismatch, ...]]:
    """Every place of the program where a rule or a pointwise chain can be fused, in graph
    order.
    """
    hint = input_hint(program.graph_signature.inputs_to_parameters)
    matches, mismatches = match_rules(program.graph, RULES)
    plans, rejected = find_regions(program.graph, matches, hint)
    candidates = tuple(candidate_of(plan, device, torch_device) for plan in plans)
    return candidates, (*mismatches, *rejected)


def make_plan(
    program: ExportedProgram,
    device: Device,
    torch_device: str,
    kernels: Path,
    *,
    max_fusions: int | None,
    seed: int,
    progress: Progress,
) -> FusionPlan:
    """Emit, verify and race every candidate; equal kernels are judged once.

    A kernel that fails a numerics check is never kept. One that should save traffic or launches is
    kept unless it is measured slower; one that should not is kept only when it wins.
    """
    candidates, rejected = find_candidates(program, device, torch_device)
    judged: dict[tuple[str, int], _Judged] = {}
    fusions: list[Fusion] = []
    for candidate in candidates:
        key = (candidate.source.file_name, len(candidate.companions))
        if key not in judged:
            with progress.stage(f"verify and time {candidate.source.file_name}"):
                judged[key] = _judge(candidate, torch_device, kernels, seed)
        kept, reason = judged[key].kept, judged[key].reason
        if kept and max_fusions is not None and sum(f.kept for f in fusions) >= max_fusions:
            kept, reason = False, f"left out by --max-fusions {max_fusions}"
        fusions.append(_fusion(candidate, judged[key], kept, reason))
    numerics = {item.operator.name: item.numerics for item in judged.values()}
    dropped = [
        Mismatch(
            fusion.candidate.plan.rule,
            "numerics" if fusion.reason.startswith("numerics") else "speed",
            fusion.reason,
            fusion.candidate.nodes[-1],
        )
        for fusion in fusions
        if not fusion.kept
    ]
    rows = tuple(row for rows in numerics.values() for row in rows)
    return FusionPlan(tuple(fusions), (*rejected, *dropped), rows)


def _fusion(candidate: Candidate, judged: _Judged, kept: bool, reason: str) -> Fusion:
    return Fusion(
        candidate,
        judged.operator,
        judged.before,
        judged.after,
        judged.comparison,
        judged.trials,
        kept,
        reason,
    )


def _judge(candidate: Candidate, device: str, kernels: Path, seed: int) -> _Judged:
    operator = define(candidate.source, write_kernel(candidate.source, kernels))
    numerics = verify_region(candidate.lowered, operator, device, seed)
    failed = [row for row in numerics if not row.passed]
    if failed:
        reason = f"numerics: {failed[0].measure} is over its limit"
        return _Judged(operator, numerics, None, None, None, (), False, reason)
    before, after = race(candidate, operator)
    inputs = _inputs(before, device, seed)
    trials: tuple[Trial, ...] = ()
    if device.startswith("cuda"):
        trials = tune(candidate, operator, kernels, device, seed)
    calls = {"before": _call(before, inputs), "after": _call(after, inputs)}
    timings = interleaved(calls, device, rounds=_ROUNDS, warmup=5, budget_s=_BUDGET_S)
    comparison = compare(timings["before"], timings["after"])
    kept, reason = _decide(candidate, comparison)
    return _Judged(
        operator, numerics, timings["before"], timings["after"], comparison, trials, kept, reason
    )


def _decide(candidate: Candidate, comparison: Comparison) -> tuple[bool, str]:
    saves = candidate.traffic.saved_bytes > 0
    interval = f"{comparison.ratio:.2f}x, 95 % interval {comparison.low:.2f}-{comparison.high:.2f}"
    verdict = comparison.verdict
    if verdict == "wins" or (verdict == "not slower" and saves):
        return True, f"{verdict}: {interval}"
    if verdict == "not slower":
        return False, f"saves no traffic and does not win: {interval}"
    return False, f"slower than the operators it replaces: {interval}"


def write_kernel(source: KernelSource, folder: Path) -> Path:
    """Write the kernel's text to `folder`/NAME.py and return the path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{source.file_name}.py"
    path.write_text(source.text, encoding="utf-8")
    return path


def _inputs(subgraph: Subgraph, device: str, seed: int) -> tuple[torch.Tensor, ...]:
    values = [node.meta["val"] for node in subgraph.inputs]
    specs = [InputSpec(tuple(value.shape), value.dtype) for value in values]
    drawn = draw_case(specs, CASES[0], seed, device=device)
    return tuple(_as_strided(tensor, value) for tensor, value in zip(drawn, values, strict=True))


def _as_strided(tensor: torch.Tensor, like: Any) -> torch.Tensor:
    """The drawn values in the layout the graph has there."""
    if tensor.stride() == like.stride():
        return tensor
    made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=tensor.device)
    return made.copy_(tensor) if 0 not in like.stride() else tensor


def _call(subgraph: Subgraph, inputs: Sequence[torch.Tensor]) -> Any:
    def run() -> object:
        with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
            return subgraph.module(*inputs)

    return run
