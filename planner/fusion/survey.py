"""All regions of a graph worth considering, what each would save, and the choice among them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

from torch import fx

from fusion_kernels.rule import Match
from planner.fusion.choice import Option, choose
from planner.fusion.growth import Growth
from planner.fusion.lower import is_view, without_last_views
from planner.fusion.pool import first_growth, grown_otherwise, moved, parts
from planner.fusion.prices import Lowering, Prices
from planner.fusion.reach import Reach, reach_of
from planner.fusion.weights import LEAST_US, Rates

_ROUNDS = 3
"""How often borders are moved; each time only what is new is looked at."""


class Survey:
    """The overlapping regions of one graph. Sets of nodes are bits in graph order."""

    def __init__(
        self,
        graph: fx.Graph,
        fusable: Iterable[fx.Node],
        alone: Iterable[fx.Node],
        matches: Sequence[Match],
        rates: Rates,
        lowering: Lowering,
    ) -> None:
        """`fusable` may be in a region, those in `alone` and matches may be one by themselves."""
        self.reach: Reach = reach_of(graph)
        self.prices = Prices(self.reach, rates, lowering)
        self.fusable = self.reach.bits(fusable)
        self._alone = self.reach.bits(alone)
        self._matched = {self._trimmed(self.reach.bits(match.nodes)): match for match in matches}
        seeds = tuple(self._matched)
        self.growth: Growth = first_growth(self.reach, self.fusable, seeds, self.prices)
        grown = grown_otherwise(self.reach, self.fusable, seeds, self.prices)
        self._weights: dict[int, float] = {}
        self._admit((*self.growth.regions, *grown, *seeds))
        self._admit([part for region in list(self._weights) for part in parts(self.reach, region)])
        self._move_borders()

    def choose(
        self, *, without: Collection[int] = (), among: Mapping[int, float] | None = None
    ) -> tuple[int, ...]:
        """The regions that together save the most, in order of their first nodes.

        Those in `without` are left out. With `among` only its regions count, by the microseconds
        that it says they save; what saves nothing there is still taken where nothing overlaps it.
        """
        weights = self._weights if among is None else among
        options = [
            Option(bits, max(weight, LEAST_US))
            for bits, weight in weights.items()
            if bits not in without
        ]
        return tuple(options[n].nodes for n in choose(options, self.reach.later))

    def match_of(self, nodes: Iterable[int]) -> Match:
        """The match that consists of these nodes, but for views at its ends."""
        return self._matched[sum(1 << n for n in nodes)]

    def form(self, bits: int) -> Hashable:
        """Equal for regions that differ in the names of their nodes alone."""
        return self.prices.form(bits)

    def matches_in(self, bits: int) -> tuple[Match, ...]:
        """The matches that lie whole in the set, in graph order."""
        found = [match for nodes, match in self._matched.items() if not nodes & ~bits]
        return tuple(sorted(found, key=lambda match: self.reach.index[match.root]))

    def _move_borders(self) -> None:
        for _ in range(_ROUNDS):
            known = len(self._weights)
            self._admit(moved(self.reach, self.choose(), self.fusable))
            if len(self._weights) == known:
                return

    def _admit(self, sets: Iterable[int]) -> None:
        """Take in those that one kernel could compute, that save something and are convex. What a
        rule matches is tried whatever is predicted.
        """
        for given in sets:
            bits = self._trimmed(given)
            if bits in self._weights or not self._large_enough(bits):
                continue
            saving = self.prices.saving_us(bits)
            if saving is not None and bits in self._matched:
                saving = max(saving, LEAST_US)
            if saving is not None and saving > 0 and self.reach.convex(bits):
                self._weights[bits] = saving

    def _trimmed(self, bits: int) -> int:
        """The set without views that it can as well read, or leave to others, from outside: so
        equal layers have equal regions, whoever else reads their views.
        """
        nodes = self.reach.members(bits)
        return self.reach.bits(without_first_views(without_last_views(nodes)))

    def _large_enough(self, bits: int) -> bool:
        return bits.bit_count() > 1 or bits & self._alone != 0 or bits in self._matched


def without_first_views(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """The nodes less the views of what none of the others reads and none computes."""
    left = set(nodes)
    for node in nodes:
        (source, *_) = node.all_input_nodes or (node,)
        if is_view(node) and source not in left:
            readers = left.intersection(source.users)
            if readers == {node}:
                left.remove(node)
    return [node for node in nodes if node in left]
