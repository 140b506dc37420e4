"""Chooses among overlapping regions: a set of the largest total weight that can run together.

Regions may not overlap, and none may wait for another that waits for it, over however many others.
Pairs that exclude each other make a conflict graph; each of its connected components is solved
exactly where that takes few steps, and by exchange where it does not. A cycle of three or more
shows only in the whole choice; its members are then barred from being chosen together, and the
choice is made anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from planner.fusion.reach import cycle, positions, union

_MOST_STATES = 20_000
"""States that one component may cost exactly: some tenths of a second."""
_MOST_EXACT = 300
"""Options of a component beyond which it is not tried exactly: the recursion is as deep."""
_MOST_CYCLES = 64
_UNITS = 1e6
"""Weights are compared in whole picoseconds, so that equal ones are equal."""


@dataclass(frozen=True, slots=True)
class Option:
    """A set of nodes that one kernel could compute, and the microseconds it would save."""

    nodes: int
    weight: float


@dataclass(frozen=True, slots=True)
class _Component:
    """Options that hang together, in their own numbering. `groups` holds those with the same
    first node, which all exclude each other; `barred` sets that may not be complete.
    """

    weights: tuple[int, ...]
    clashes: tuple[int, ...]
    groups: tuple[int, ...]
    barred: tuple[int, ...]


def choose(options: Sequence[Option], later: Sequence[int]) -> tuple[int, ...]:
    """Positions of the options to take, in order of their first nodes.

    `later` holds for each node the set of those that follow it (see `planner.fusion.reach`). The
    total weight is the largest there is where every component is small; options without positive
    weight are never taken. Equal options give equal choices: of two with the same weight the one
    that begins earlier wins, then the one listed earlier.
    """
    usable = [n for n, option in enumerate(options) if _units(option) > 0]
    usable.sort(key=lambda n: (options[n].nodes & -options[n].nodes, n))
    sets = [options[n].nodes for n in usable]
    weights = [_units(options[n]) for n in usable]
    clashes = _clashes(sets, later)
    barred: list[int] = []
    out = 0
    solved: dict[_Component, int] = {}
    while True:
        parts = _components(clashes, barred, out)
        chosen = [n for part in parts for n in _solve(part, sets, weights, clashes, barred, solved)]
        chosen.sort()
        circle = [chosen[n] for n in cycle([sets[n] for n in chosen], later)]
        if not circle:
            return tuple(usable[n] for n in chosen)
        if len(barred) < _MOST_CYCLES:
            barred.append(sum(1 << n for n in circle))
        else:
            out |= 1 << min(circle, key=lambda n: (weights[n], -n))


def _units(option: Option) -> int:
    return round(option.weight * _UNITS)


def _clashes(sets: Sequence[int], later: Sequence[int]) -> list[int]:
    """For each set those that it overlaps, or that wait for it while it waits for them. Such two
    lie within each other's stretch of the graph.
    """
    reached = [union(later, item) for item in sets]
    found = [0] * len(sets)
    for n, first in enumerate(sets):
        for m in range(n + 1, len(sets)):
            second = sets[m]
            if second & -second > first:
                break  # sorted by first node: from here on all begin after this one ends
            if first & second or (reached[n] & second and reached[m] & first):
                found[n] |= 1 << m
                found[m] |= 1 << n
    return found


def _components(clashes: Sequence[int], barred: Sequence[int], out: int) -> list[tuple[int, ...]]:
    """Options in one component may not all be chosen; those of two do not matter to each other."""
    joined = list(clashes)
    for circle in barred:
        for n in positions(circle):
            joined[n] |= circle
    left = ((1 << len(clashes)) - 1) & ~out
    found = []
    while left:
        part = frontier = left & -left
        while frontier:
            frontier = union(joined, frontier) & left & ~part
            part |= frontier
        found.append(tuple(positions(part)))
        left &= ~part
    return found


def _solve(
    part: tuple[int, ...],
    sets: Sequence[int],
    weights: Sequence[int],
    clashes: Sequence[int],
    barred: Sequence[int],
    solved: dict[_Component, int],
) -> list[int]:
    """The component's options to take. Components with the same form are solved once."""
    if len(part) == 1:
        return list(part)
    own = {n: k for k, n in enumerate(part)}
    component = _Component(
        tuple(weights[n] for n in part),
        tuple(_renumbered(clashes[n], own) for n in part),
        _groups([sets[n] for n in part]),
        tuple(_renumbered(circle, own) for circle in barred if next(positions(circle)) in own),
    )
    if component not in solved:
        solved[component] = _best(component)
    return [part[k] for k in positions(solved[component])]


def _renumbered(bits: int, own: Mapping[int, int]) -> int:
    return sum(1 << own[n] for n in positions(bits) if n in own)


def _groups(sets: Sequence[int]) -> tuple[int, ...]:
    """The options by their first node, in its order."""
    found: dict[int, int] = {}
    for k, item in enumerate(sets):
        first = item & -item
        found[first] = found.get(first, 0) | 1 << k
    return tuple(found[first] for first in sorted(found))


def _best(component: _Component) -> int:
    if len(component.weights) <= _MOST_EXACT:
        exact = _Exact(component)
        try:
            return exact.best(0, (1 << len(component.weights)) - 1, 0)[1]
        except _TooLarge:
            pass
    return _by_exchange(component)


class _TooLarge(Exception):
    """A component costs more states than allowed."""


class _Exact:
    """Dynamic programming over the groups: the best of what follows depends on what is still
    free there, and on the barred options taken.
    """

    def __init__(self, component: _Component) -> None:
        self._component = component
        self._watched = 0
        for circle in component.barred:
            self._watched |= circle
        self._rest = _suffixes(component.groups)
        self._known: dict[tuple[int, int, int], tuple[int, int]] = {}

    def best(self, group: int, free: int, taken: int) -> tuple[int, int]:
        """Weight and options of the best choice among the free ones from `group` on."""
        groups = self._component.groups
        free &= self._rest[group]
        while group < len(groups) and not free & groups[group]:
            group += 1
        if group == len(groups):
            return 0, 0
        state = (group, free, taken)
        if state not in self._known:
            if len(self._known) >= _MOST_STATES:
                raise _TooLarge
            self._known[state] = self._from(group, free, taken)
        return self._known[state]

    def _from(self, group: int, free: int, taken: int) -> tuple[int, int]:
        """With each of the group's options in turn, and last with none of them."""
        found = (-1, 0)
        for k in positions(free & self._component.groups[group]):
            now = taken | (1 << k & self._watched)
            left = _without_barred(free & ~self._component.clashes[k], now, self._component.barred)
            weight, rest = self.best(group + 1, left, now)
            weight += self._component.weights[k]
            if weight > found[0]:
                found = (weight, rest | 1 << k)
        without = self.best(group + 1, free, taken)
        return without if without[0] > found[0] else found


def _suffixes(groups: Sequence[int]) -> list[int]:
    rest = [0] * (len(groups) + 1)
    for n in reversed(range(len(groups))):
        rest[n] = rest[n + 1] | groups[n]
    return rest


def _without_barred(free: int, taken: int, barred: Iterable[int]) -> int:
    """What is free once the last member of every circle that is complete but for it is not."""
    for circle in barred:
        missing = circle & ~taken
        if not missing & (missing - 1):
            free &= ~missing
    return free


def _by_exchange(component: _Component) -> int:
    """The heaviest first; then, as long as that gains, one option comes in for those it excludes
    and what they kept out may follow.
    """
    order = sorted(range(len(component.weights)), key=lambda k: (-component.weights[k], k))
    chosen = _filled(0, order, component)
    improved = True
    while improved:
        improved = False
        for k in order:
            if chosen >> k & 1:
                continue
            other = _filled(_exchanged(chosen, k, component), order, component)
            if _total(other, component) > _total(chosen, component):
                chosen, improved = other, True
    return chosen


def _exchanged(chosen: int, k: int, component: _Component) -> int:
    kept = chosen & ~component.clashes[k] | 1 << k
    for circle in component.barred:
        if not circle & ~kept:
            others = circle & ~(1 << k)
            kept &= ~(1 << min(positions(others), key=lambda n: component.weights[n]))
    return kept


def _filled(chosen: int, order: Sequence[int], component: _Component) -> int:
    for k in order:
        complete = any(not circle & ~(chosen | 1 << k) for circle in component.barred)
        if not chosen & component.clashes[k] and not complete:
            chosen |= 1 << k
    return chosen


def _total(chosen: int, component: _Component) -> int:
    return sum(component.weights[k] for k in positions(chosen))
