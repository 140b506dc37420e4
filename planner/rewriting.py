"""Rewrites a captured program before it is fused: what always helps at once, the rest by a race."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram

from planner.bench import one_forward
from planner.fusion.module import FusedModule
from planner.graph.export import second_program
from planner.passes.rewrites import RACED, REWRITES, Trial
from planner.passes.runner import Pass, run_passes
from planner.profile.untouched import fresh_inputs
from planner.report.model import PassRecord
from planner.timing import Comparison, compare, interleaved

_ROUNDS = 60
_BUDGET_S = 6.0

Race = Callable[[ExportedProgram, ExportedProgram], Comparison | None]
"""Time of the first over time of the second; None where they could not run."""


def rewritten(
    program: ExportedProgram, race: Race, dump_to: Path | None = None, first_number: int = 0
) -> tuple[ExportedProgram, tuple[PassRecord, ...]]:
    """A program of its own that computes the same, and the records of its passes.

    A rewrite of `RACED` stays where it found something to do and `race` does not find the program
    slower with it, or, where it must win, finds it faster. Its record says what the race said.
    """
    current = second_program(program)
    records = run_passes(current, REWRITES, dump_to, first_number)
    for trial in RACED:
        current, more = _tried(current, trial, race, dump_to, first_number + len(records))
        records += more
    return current, records


def race_on(
    bound: Callable[[ExportedProgram], FusedModule],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    device: str,
) -> Race:
    """A race of whole forwards on copies of these inputs."""

    def race(before: ExportedProgram, after: ExportedProgram) -> Comparison | None:
        given, named = fresh_inputs(args, kwargs)
        modules = {"before": bound(before), "after": bound(after)}
        if any(module.refusal(given, named) for module in modules.values()):
            return None
        calls = {name: one_forward(module, given, named) for name, module in modules.items()}
        timings = interleaved(calls, device, rounds=_ROUNDS, budget_s=_BUDGET_S)
        return compare(timings["before"], timings["after"])

    return race


def _tried(
    current: ExportedProgram, trial: Trial, race: Race, dump_to: Path | None, number: int
) -> tuple[ExportedProgram, tuple[PassRecord, ...]]:
    """The program with the passes or without them, and the records to show for it."""
    name, change = trial.passes[0]
    changed = second_program(current)
    notes = run_passes(changed, trial.passes)[0].notes
    if changed.graph_module.code == current.graph_module.code:
        return current, run_passes(current, ((name, _saying(*notes)),), dump_to, number)
    found = race(current, changed)
    wanted = ("wins",) if trial.must_win else ("wins", "not slower")
    if found is None or found.verdict not in wanted:
        said = "it could not be raced" if found is None else f"{found.ratio:.3f}x"
        left = _saying(*notes, f"taken back: {said}")
        return current, run_passes(current, ((name, left),), dump_to, number)
    said = f"kept: {found.ratio:.3f}x as fast as without"
    kept = ((name, lambda program: (*change(program), said)), *trial.passes[1:])
    changed = second_program(current)
    return changed, run_passes(changed, kept, dump_to, number)


def _saying(*notes: str) -> Pass:
    return lambda _: notes
