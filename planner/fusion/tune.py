"""Times a few configurations of one kernel, interleaved, and gives the operator the fastest that
is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from fusion_kernels.emit.config import candidates
from fusion_kernels.emit.source import KernelSource, emit
from fusion_kernels.inputs import CASES, InputSpec, draw_case
from fusion_kernels.library import FusedOperator
from fusion_kernels.load import load_kernel
from fusion_kernels.side_by_side import compile_side_by_side
from fusion_kernels.tolerances import check
from planner.fusion.candidate import Candidate
from planner.fusion.lookups import bound_of
from planner.fusion.reference import reference
from planner.fusion.subgraph import run_in_float64
from planner.progress import SILENT, Progress
from planner.report.model import Trial
from planner.timing import Timing, device_only, interleaved

_ROUNDS = 40
_BUDGET_S = 0.5
"""Five rounds and more tell configurations apart of which one call takes many milliseconds."""
_COPIES = 4
"""Input sets used in turn, so that one call does not find its inputs in the cache of the last."""
_LARGE_BYTES = 256 << 20
"""Inputs that no cache holds; one set of them will do."""


def tune(
    candidate: Candidate,
    operator: FusedOperator,
    kernels: Path,
    device: str,
    seed: int,
    progress: Progress = SILENT,
) -> tuple[Trial, ...]:
    """Every configuration worth timing, fastest first, by device time; the operator runs the
    fastest from now on.

    A configuration whose result misses the numerics contract is left out.
    """
    with progress.stage("draw inputs"):
        sets = _input_sets(candidate, device, seed)
        exact = run_in_float64(reference(candidate.lowered), sets[0])
    placed = [candidate.lowered.arguments(tensors) for tensors in sets]
    sources = _sources(candidate, device)
    runs: dict[str, Callable[[], object]] = {}
    with progress.stage("compile configurations"):
        loaded = {name: load_kernel(source.text, source.name) for name, source in sources.items()}
        compile_side_by_side((kernel, placed[0]) for kernel in loaded.values())
        for name, kernel in loaded.items():
            if _right(candidate.lowered.returned(kernel.launcher(*placed[0])), exact):
                runs[name] = device_only(_over(kernel.launcher, placed), device)
    with progress.stage("time configurations"):
        timings = interleaved(runs, device, rounds=_ROUNDS, budget_s=_BUDGET_S)
    trials = sorted(
        (_trial(name, timing, len(sets)) for name, timing in timings.items()),
        key=lambda trial: trial.median_us,
    )
    if trials:
        best = sources[trials[0].config]
        path = kernels / f"{best.file_name}.py"
        path.write_text(best.text, encoding="utf-8")
        operator.use(best, path)
    return tuple(trials)


def _sources(candidate: Candidate, device: str) -> dict[str, KernelSource]:
    """The kernel in every configuration worth timing, as it will read should it be the fastest:
    Triton compiles a text once that is loaded again, unless its lines have moved.
    """
    gpu = torch.cuda.get_device_name(device)
    found = {}
    for config in candidates(candidate.lowered.region, candidate.source.layout):
        provenance = replace(candidate.provenance, tuned_on=f"{gpu}, {config}")
        found[str(config)] = emit(candidate.lowered.region, provenance, config)
    return found


def _input_sets(candidate: Candidate, device: str, seed: int) -> list[tuple[torch.Tensor, ...]]:
    nodes = candidate.lowered.inputs
    values = [node.meta["val"] for node in nodes]
    specs = [InputSpec(tuple(n.meta["val"].shape), n.meta["val"].dtype, bound_of(n)) for n in nodes]
    size = sum(value.numel() * value.element_size() for value in values)
    copies = 1 if size > _LARGE_BYTES else _COPIES
    return [draw_case(specs, CASES[0], seed + n, device=device) for n in range(copies)]


def _right(outs: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> bool:
    return all(r.passed for out, ref in zip(outs, exact, strict=True) for r in check(out, ref))


def _over(
    launcher: Callable[..., object], sets: Sequence[tuple[torch.Tensor, ...]]
) -> Callable[[], object]:
    """One call of the launcher for each input set, so that none finds its inputs in the cache."""

    def run() -> None:
        for tensors in sets:
            launcher(*tensors)

    return run


def _trial(name: str, timing: Timing, calls: int) -> Trial:
    return Trial(name, timing.median_us / calls, timing.p20_us / calls, timing.p80_us / calls)
