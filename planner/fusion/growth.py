"""Grows regions from seeds along the edges of a graph, in a given order.

Regions are the vertices of a quotient graph that stays acyclic: two neighbours merge only when no
other path leads from one to the other, so that all regions of one growth can run as one call each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from planner.fusion.reach import Reach, positions, union

Edge = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why two neighbours, or the nodes of a seed, stay apart. `union` is what could not be
    lowered, 0 where the reason is that a path leaves it and comes back.
    """

    nodes: tuple[int, ...]
    union: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Disjoint regions in order of their first nodes, single nodes among them."""

    regions: tuple[int, ...]
    seeds: tuple[Refusal, ...]
    merges: tuple[Refusal, ...]


def grow(
    reach: Reach,
    fusable: int,
    seeds: Sequence[int],
    edges: Iterable[Edge],
    may_be_one: Callable[[int], bool],
    *,
    join_seeds: bool,
) -> Growth:
    """Merge the ends of each edge in turn, seeds first, wherever `may_be_one` kernel holds both.

    With `join_seeds` two seeds may end in one region.
    """
    quotient = _Quotient(reach)
    seeded: set[int] = set()
    refused: list[Refusal] = []
    for seed in seeds:
        nodes = tuple(positions(seed))
        if not may_be_one(seed):
            refused.append(Refusal(nodes, seed))
        elif not quotient.convex(seed):
            refused.append(Refusal(nodes, 0))
        else:
            seeded.add(quotient.contract(seed))
            fusable |= seed
    apart: list[Refusal] = []
    for first, second in edges:
        if not fusable >> first & fusable >> second & 1:
            continue
        roots = quotient.root[first], quotient.root[second]
        if roots[0] == roots[1] or (not join_seeds and seeded.issuperset(roots)):
            continue
        both = quotient.members[roots[0]] | quotient.members[roots[1]]
        if not quotient.convex(both):
            apart.append(Refusal((first, second), 0))
        elif not may_be_one(both):
            apart.append(Refusal((first, second), both))
        else:
            root = quotient.contract(both)
            if seeded.intersection(roots):
                seeded.add(root)
    found = sorted(
        {quotient.members[quotient.root[n]] for n in positions(fusable)},
        key=lambda bits: bits & -bits,
    )
    return Growth(tuple(found), tuple(refused), tuple(apart))


class _Quotient:
    """Groups of nodes, named by their first ones, and what follows each of them."""

    def __init__(self, reach: Reach) -> None:
        count = len(reach.nodes)
        self._after = reach.after
        self._later = list(reach.later)
        self.root = list(range(count))
        self.members = {n: 1 << n for n in range(count)}

    def convex(self, bits: int) -> bool:
        """Whether no path over the present groups leaves the set (whole groups) and comes back."""
        outside = union(self._after, bits) & ~bits
        return not any(self._later[self.root[n]] & bits for n in positions(outside))

    def contract(self, bits: int) -> int:
        """Make the set, whole groups and convex, one group; returns its name."""
        roots = sorted({self.root[n] for n in positions(bits)})
        into = roots[0]
        later = union(self._later, sum(1 << root for root in roots)) | bits
        for root in roots:
            del self.members[root]
        for root in self.members:
            if self._later[root] & bits:
                self._later[root] |= later
        self.members[into] = bits
        self._later[into] = later & ~bits
        for n in positions(bits):
            self.root[n] = into
        return into
