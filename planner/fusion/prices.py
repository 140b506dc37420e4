"""What a set of nodes would save as one kernel; sets of one form are lowered and priced once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from torch import fx

from planner.fusion.forms import Forms
from planner.fusion.lowered import LoweredRegion
from planner.fusion.reach import Reach
from planner.fusion.recompute import Time
from planner.fusion.weights import Rates, kernel_us, saving_us

Lowering = Callable[[Sequence[fx.Node]], LoweredRegion | str]
"""The nodes (in graph order) as a region, or why they cannot be one kernel."""


class Prices:
    """Savings in microseconds by set of nodes."""

    def __init__(self, reach: Reach, rates: Rates, lowering: Lowering) -> None:
        self._reach = reach
        self._rates = rates
        self._lowering = lowering
        self._forms = Forms()
        self._by_form: dict[Hashable, float | None] = {}
        self._by_bits: dict[int, float | None] = {}

    def saving_us(self, bits: int) -> float | None:
        """The predicted saving; None where the set cannot be one kernel."""
        if bits not in self._by_bits:
            form = self.form(bits)
            if form not in self._by_form:
                found = self._lowering(self._reach.members(bits))
                priced = None if isinstance(found, str) else saving_us(found, self._rates)
                self._by_form[form] = priced
            self._by_bits[bits] = self._by_form[form]
        return self._by_bits[bits]

    def reason(self, bits: int) -> str | None:
        """Why the set cannot be one kernel, with the names of its own nodes; None when it can."""
        found = self._lowering(self._reach.members(bits))
        return found if isinstance(found, str) else None

    def form(self, bits: int) -> Hashable:
        """Equal for sets that differ in the names of their nodes alone."""
        return self._forms.form(self._reach.members(bits))


def kernel_time(rates: Rates, lowering: Lowering) -> Time:
    """Predicted time of nodes as one kernel, in a graph that changes between the calls."""
    forms = Forms()
    known: dict[Hashable, float | None] = {}

    def time(nodes: Sequence[fx.Node]) -> float | None:
        forms.forget()
        form = forms.form(nodes)
        if form not in known:
            found = lowering(nodes)
            known[form] = None if isinstance(found, str) else kernel_us(found, rates)
        return known[form]

    return time
