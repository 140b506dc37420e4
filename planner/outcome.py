"""Which of the raced programs the caller gets: the fastest that beats eager and is right."""

from __future__ import annotations

from collections.abc import Sequence

from planner.bench import FUSED, NORMALIZED, Race
from planner.fusion.plan import FusionPlan
from planner.report.model import NumericsRow, Outcome
from planner.timing import Comparison

_NOISE = 0.01
"""Two equal programs have been found this far apart in one process, whatever the interval says:
kernels that each won alone are given up only for more."""


def outcomes(plan: FusionPlan, fused: Sequence[NumericsRow], raced: Race) -> tuple[Outcome, ...]:
    """What may be given back, best first; the original, last, always may.

    The fused program comes first where it wins against eager, passed its checks (`fused`) and is
    not slower than the captured program without kernels by more than the noise. That one
    ("normalized") is returned for its own sake: a dropped mask or a folded constant can be all
    that there is to gain.
    """
    kept = f"{len(plan.chosen)} of {len(plan.fusions)} fusions kept"
    against = {name: item for name, item in raced.against_eager.items() if item.verdict == "wins"}
    failed = failure(fused)
    found: list[Outcome] = []
    said = f"nothing was fused: {kept}"
    if failed:
        said = f"the fused model fails a numerics check: {failed}"
    elif FUSED in against:
        said = f"the fused model wins: {_interval(against[FUSED])}; {kept}{_kernels(raced)}"
        found.append(Outcome("fused", said))
    elif FUSED in raced.against_eager:
        said = f"the fused model does not win ({_interval(raced.against_eager[FUSED])})"
    beaten = raced.kernels is not None and raced.kernels.high < 1 - _NOISE
    if NORMALIZED in against and (beaten or not found):
        why = f"with kernels {raced.kernels.ratio:.3f}x that" if found and raced.kernels else said
        wins = f"it wins without kernels: {_interval(against[NORMALIZED])}; {why}"
        found.insert(0, Outcome("normalized", wins))
    end = "" if failed or not plan.chosen else "; the original is kept"
    return (*found, Outcome("original", f"{said}{end}"))


def failure(rows: Sequence[NumericsRow]) -> str:
    """The measure of the first row that failed; "" when all passed."""
    return next((row.measure for row in rows if not row.passed), "")


def _kernels(raced: Race) -> str:
    """What the kernels bring beside the rest: a dropped mask may be most of a win."""
    if raced.kernels is None:
        return ""
    found = raced.kernels
    return f"; the kernels alone {found.ratio:.3f}x, {found.low:.3f}-{found.high:.3f}"


def _interval(found: Comparison) -> str:
    return f"{found.ratio:.3f}x eager, 95 % interval {found.low:.3f}-{found.high:.3f}"
