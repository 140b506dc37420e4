"""Which nodes of a graph follow which, as sets of bits: whether a set is convex, and whether
several can each run as one call.

Bit n of a set is the n-th node in graph order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import fx

from planner.graph.randomness import drawing_nodes


@dataclass(frozen=True, slots=True)
class Reach:
    """`before` and `after` hold each node's neighbours, `earlier` all that a path comes from and
    `later` all that one leads to.

    Operators that draw random numbers follow one another, so that none changes places with the
    next.
    """

    nodes: tuple[fx.Node, ...]
    index: Mapping[fx.Node, int]
    before: tuple[int, ...]
    after: tuple[int, ...]
    earlier: tuple[int, ...]
    later: tuple[int, ...]

    def bits(self, nodes: Iterable[fx.Node]) -> int:
        """The nodes as a set."""
        return sum(1 << self.index[node] for node in set(nodes))

    def members(self, bits: int) -> list[fx.Node]:
        """The set's nodes in graph order."""
        return [self.nodes[n] for n in positions(bits)]

    def convex(self, bits: int) -> bool:
        """Whether no path leaves the set and comes back."""
        outside = union(self.after, bits) & ~bits
        return not union(self.later, outside) & bits


def reach_of(graph: fx.Graph) -> Reach:
    """Read the graph once; it must be in order."""
    nodes = tuple(graph.nodes)
    index = {node: n for n, node in enumerate(nodes)}
    edges = [(index[source], n) for n, node in enumerate(nodes) for source in node.all_input_nodes]
    edges += itertools.pairwise(index[node] for node in drawing_nodes(graph))
    before, after = [0] * len(nodes), [0] * len(nodes)
    for first, second in edges:
        after[first] |= 1 << second
        before[second] |= 1 << first
    earlier: list[int] = []
    for sources in before:
        earlier.append(sources | union(earlier, sources))
    return Reach(nodes, index, tuple(before), tuple(after), tuple(earlier), later_of(after))


def later_of(after: Sequence[int]) -> tuple[int, ...]:
    """For each node all that follow it, from its direct successors, which have higher numbers."""
    later = [0] * len(after)
    for n in reversed(range(len(after))):
        later[n] = after[n] | union(later, after[n])
    return tuple(later)


def cycle(sets: Sequence[int], later: Sequence[int]) -> tuple[int, ...]:
    """Positions in `sets` (disjoint) of some that wait for one another when each runs as one
    call; none when all can run. A shortest cycle of those through the first set that has one.
    """
    reached = [union(later, item) for item in sets]
    waiting = {
        n: [m for m, item in enumerate(sets) if m != n and reached[n] & item]
        for n in range(len(sets))
    }
    left = _cyclic(waiting)
    for start in sorted(left):
        found = _shortest(start, waiting, left)
        if found:
            return found
    return ()


def union(table: Sequence[int], bits: int) -> int:
    """The union of the entries that the set names."""
    found = 0
    for n in positions(bits):
        found |= table[n]
    return found


def positions(bits: int) -> Iterator[int]:
    """The set's members, lowest first."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def _cyclic(waiting: Mapping[int, list[int]]) -> set[int]:
    """What remains when all that can run has run, from the front and from the back."""
    left = set(waiting)
    while True:
        sinks = {n for n in left if not left.intersection(waiting[n])}
        sources = left - {m for n in left for m in waiting[n]}
        if not sinks and not sources:
            return left
        left -= sinks | sources


def _shortest(start: int, waiting: Mapping[int, list[int]], within: set[int]) -> tuple[int, ...]:
    came_from: dict[int, int] = {}
    layer = [start]
    while layer:
        following = []
        for n in layer:
            for m in waiting[n]:
                if m == start:
                    return _path(start, n, came_from)
                if m in within and m not in came_from:
                    came_from[m] = n
                    following.append(m)
        layer = following
    return ()


def _path(start: int, end: int, came_from: Mapping[int, int]) -> tuple[int, ...]:
    path = [end]
    while path[-1] != start:
        path.append(came_from[path[-1]])
    return tuple(sorted(path))
