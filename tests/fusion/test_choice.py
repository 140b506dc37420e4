"""The choice has the largest weight there is, excludes what overlaps or waits, and repeats."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from planner.fusion import choice
from planner.fusion.choice import Option, choose
from planner.fusion.reach import cycle, later_of, union

LINE = later_of([1 << n + 1 for n in range(11)] + [0])
"""Twelve nodes, each read by the next."""
FREE = (0,) * 12
"""Twelve nodes that read nothing of each other."""


def _set(*nodes: int) -> int:
    return sum(1 << n for n in nodes)


def _chosen(options: Sequence[Option], later: Sequence[int]) -> list[int]:
    return [options[n].nodes for n in choose(options, later)]


def _total(options: Sequence[Option], chosen: Sequence[int]) -> float:
    return sum(options[n].weight for n in chosen)


def _feasible(sets: Sequence[int], later: Sequence[int]) -> bool:
    apart = all(not a & b for a, b in itertools.combinations(sets, 2))
    return apart and _runs(sets, later)


def _runs(sets: Sequence[int], later: Sequence[int]) -> bool:
    """Told without `cycle`: as long as anything is left, some set waits for none of the others."""
    left = list(sets)
    while left:
        ready = [a for a in left if not any(union(later, b) & a for b in left if b != a)]
        if not ready:
            return False
        left = [a for a in left if a not in ready]
    return True


def _best_of_all(options: Sequence[Option], later: Sequence[int]) -> float:
    every = range(len(options))
    subsets = itertools.chain.from_iterable(
        itertools.combinations(every, count) for count in range(len(options) + 1)
    )
    return max(
        _total(options, subset)
        for subset in subsets
        if _feasible([options[n].nodes for n in subset], later)
    )


def _convex(bits: int, after: Sequence[int], later: Sequence[int]) -> bool:
    return not union(later, union(after, bits) & ~bits) & bits


def _random_case(seed: int, nodes: int, count: int) -> tuple[list[Option], tuple[int, ...]]:
    """Convex sets of a random graph, with weights among which some are equal."""
    own = random.Random(seed)
    after = [
        sum(1 << m for m in range(n + 1, nodes) if own.random() < 1.6 / (m - n))
        for n in range(nodes)
    ]
    later = later_of(after)
    options: list[Option] = []
    while len(options) < count:
        first = own.randrange(nodes)
        within = range(first, min(nodes, first + 6))
        bits = sum(1 << n for n in within if own.random() < 0.45)
        if bits and _convex(bits, after, later):
            options.append(Option(bits, own.choice((1.0, 2.0, 2.5, 3.0, 4.25))))
    return options, later


def test_two_outer_ones_beat_the_heaviest_in_the_middle() -> None:
    options = [
        Option(_set(1, 2), 3.0),
        Option(_set(0, 1), 2.0),
        Option(_set(2, 3), 2.0),
    ]
    assert _chosen(options, LINE) == [_set(0, 1), _set(2, 3)]


def test_one_whole_beats_its_halves_when_it_saves_more() -> None:
    halves = [Option(_set(0, 1), 2.0), Option(_set(2, 3), 2.0)]
    assert _chosen([*halves, Option(_set(0, 1, 2, 3), 4.5)], LINE) == [_set(0, 1, 2, 3)]
    assert _chosen([*halves, Option(_set(0, 1, 2, 3), 3.5)], LINE) == [_set(0, 1), _set(2, 3)]


def test_what_saves_nothing_is_not_taken() -> None:
    assert _chosen([Option(_set(0, 1), 0.0), Option(_set(2, 3), -1.0)], FREE) == []
    assert _chosen([], FREE) == []


def test_two_that_wait_for_each_other_are_not_taken_together() -> None:
    """0 -> 3 and 1 -> 2 cross: with 0 and 2 in one kernel, 1 and 3 cannot be in another."""
    later = later_of([_set(3), _set(2), 0, 0])
    options = [Option(_set(0, 2), 2.0), Option(_set(1, 3), 3.0)]
    assert _chosen(options, later) == [_set(1, 3)]


def test_three_that_wait_in_a_circle_are_not_taken_together() -> None:
    """Each pair can run, all three cannot; the lightest gives way."""
    after = [0] * 6
    after[0], after[2], after[4] = _set(3), _set(5), 0
    after[1] = _set(4)
    sets = [_set(0, 4), _set(2, 3), _set(1, 5)]
    later = later_of(after)
    assert all(_feasible(pair, later) for pair in itertools.combinations(sets, 2))
    assert not _feasible(sets, later)
    weights = (2.0, 1.0, 3.0)
    options = [Option(item, weight) for item, weight in zip(sets, weights, strict=True)]
    assert _chosen(options, later) == [sets[0], sets[2]]


def test_equal_weights_are_decided_by_graph_order() -> None:
    options = [Option(_set(1, 2), 2.0), Option(_set(0, 1), 2.0)]
    assert _chosen(options, LINE) == _chosen(options[::-1], LINE) == [_set(0, 1)]
    same = [Option(_set(0, 1), 2.0)] * 3
    assert choose(same, LINE) == (0,)


@pytest.mark.parametrize("seed", range(150))
def test_no_feasible_set_weighs_more(seed: int) -> None:
    options, later = _random_case(seed, nodes=9, count=9)
    chosen = choose(options, later)
    assert _feasible([options[n].nodes for n in chosen], later)
    assert _total(options, chosen) == pytest.approx(_best_of_all(options, later))


@pytest.mark.parametrize("seed", range(40))
def test_by_exchange_the_choice_is_feasible_and_near_the_best(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, later = _random_case(seed, nodes=9, count=9)
    monkeypatch.setattr(choice, "_MOST_EXACT", 1)
    chosen = choose(options, later)
    assert _feasible([options[n].nodes for n in chosen], later)
    assert _total(options, chosen) >= 0.8 * _best_of_all(options, later)


@pytest.mark.parametrize("seed", range(10))
def test_a_large_choice_can_run_and_beats_the_heaviest_first(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, later = _random_case(seed, nodes=60, count=120)
    greedy: list[int] = []
    for option in sorted(options, key=lambda item: -item.weight):
        if _feasible([*greedy, option.nodes], later):
            greedy.append(option.nodes)
    weight_of = {option.nodes: option.weight for option in sorted(options, key=lambda o: o.weight)}
    for states in (choice._MOST_STATES, 10):
        monkeypatch.setattr(choice, "_MOST_STATES", states)
        chosen = choose(options, later)
        assert _feasible([options[n].nodes for n in chosen], later)
        assert _total(options, chosen) >= sum(weight_of[item] for item in greedy) * 0.95


@pytest.mark.parametrize("seed", range(10))
def test_too_many_circles_still_end_in_a_choice_that_runs(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "_MOST_CYCLES", 0)
    options, later = _random_case(seed, nodes=30, count=40)
    assert _feasible([options[n].nodes for n in choose(options, later)], later)


def test_the_same_options_give_the_same_choice() -> None:
    options, later = _random_case(3, nodes=60, count=120)
    assert choose(options, later) == choose(list(options), tuple(later))


def test_components_of_one_form_are_solved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve equal layers cost what one does."""
    solved = []
    best = choice._best
    monkeypatch.setattr(choice, "_best", lambda part: (solved.append(part), best(part))[1])
    layer = [Option(_set(0, 1), 2.0), Option(_set(1, 2), 3.0), Option(_set(2, 3), 2.0)]
    options = [Option(o.nodes << 4 * n, o.weight) for n in range(12) for o in layer]
    later = later_of([1 << n + 1 for n in range(47)] + [0])
    chosen = choose(options, later)
    assert len(chosen) == 24
    assert len(solved) == 1


@pytest.mark.parametrize("seed", range(60))
def test_a_cycle_is_found_where_sets_cannot_run_and_nowhere_else(seed: int) -> None:
    own = random.Random(seed)
    options, later = _random_case(seed, nodes=14, count=14)
    sets: list[int] = []
    for option in options:
        if own.random() < 0.8 and all(not option.nodes & item for item in sets):
            sets.append(option.nodes)
    found = cycle(sets, later)
    assert bool(found) is not _runs(sets, later)
    assert not found or not _runs([sets[n] for n in found], later)
