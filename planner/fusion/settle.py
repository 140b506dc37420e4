"""Confirms a choice of regions by measurement: where one does not stand, what overlapped it has its
turn.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

from planner.fusion.survey import Survey

Judge = Callable[[int], float | None]
"""The microseconds that a region was measured to save, None where it may not stay."""

_ROUNDS = 3
"""How often the choice is made anew without the regions that did not stand."""
_MOST_FORMS = 16
"""Kernels that are tried in place of others, counted once for all places that are equal."""


@dataclass(frozen=True, slots=True)
class Settled:
    """`kept` can run together and save the most by measurement. `tried` holds all regions judged,
    in the order they were; `instead` for each that did not stand what was tried in its place.
    """

    kept: tuple[int, ...]
    tried: tuple[int, ...]
    instead: Mapping[int, tuple[int, ...]]


def settle(survey: Survey, judge: Judge) -> Settled:
    """Judge the chosen regions; choose again without those that did not stand, and judge what is
    new, for a few rounds. The last choice is among those that stood, by measurement.
    """
    measured: dict[int, float | None] = {}
    forms: set[Hashable] = set()
    out: set[int] = set()
    for turn in range(_ROUNDS + 1):
        chosen = survey.choose(without=out)
        fresh = [bits for bits in chosen if bits not in measured]
        for bits in fresh:
            form = survey.form(bits)
            if turn and form not in forms and len(forms) >= _MOST_FORMS:
                out.add(bits)
                continue
            if turn:
                forms.add(form)
            measured[bits] = judge(bits)
        out |= {bits for bits, saved in measured.items() if saved is None}
        if not out.intersection(fresh):
            break
    stood = {bits: saved for bits, saved in measured.items() if saved is not None}
    kept = survey.choose(among=stood)
    return Settled(kept, tuple(measured), _instead(measured))


def _instead(measured: Mapping[int, float | None]) -> dict[int, tuple[int, ...]]:
    tried = list(measured)
    return {
        bits: tuple(other for other in tried[n + 1 :] if other & bits)
        for n, bits in enumerate(tried)
        if measured[bits] is None
    }
