"""Interleaved samples, and what a comparison of them says."""

from __future__ import annotations

import itertools

import pytest

from planner.timing import Comparison, Timing, compare, interleaved, pace_of, percentile


def test_each_call_runs_once_a_round_and_none_always_follows_the_same_other() -> None:
    ran: list[str] = []
    calls = {name: (lambda name=name: ran.append(name)) for name in "abcd"}
    timings = interleaved(calls, "cpu", rounds=40, warmup=0)
    rounds = [ran[start : start + 4] for start in range(0, len(ran), 4)]
    assert len(rounds) == 40
    assert all(sorted(names) == list("abcd") for names in rounds)
    followers = {pair for names in rounds for pair in itertools.pairwise(names)}
    assert len(followers) == 12
    assert all(len(timing.samples_us) == 40 for timing in timings.values())


def test_a_spent_budget_still_gives_five_rounds() -> None:
    (timing,) = interleaved({"a": lambda: None}, "cpu", rounds=100, budget_s=0.0).values()
    assert len(timing.samples_us) == 5


@pytest.mark.parametrize(
    ("candidate", "verdict"),
    [([5.0] * 9, "wins"), ([20.0] * 9, "slower"), ([10.0] * 9, "not slower")],
)
def test_a_clear_difference_is_called_by_its_name(candidate: list[float], verdict: str) -> None:
    assert compare(Timing((10.0,) * 9), Timing(tuple(candidate))).verdict == verdict


def test_pairs_are_compared_and_not_sums() -> None:
    """A neighbour that slows some rounds down meets both of a pair."""
    busy = [1.0, 1.0, 10.0, 10.0, 1.0]
    found = compare(Timing(tuple(10 * b for b in busy)), Timing(tuple(9 * b for b in busy)))
    assert found.ratio == pytest.approx(10 / 9)
    assert found.verdict == "wins"


def test_a_verdict_is_read_off_the_interval() -> None:
    assert Comparison(1.1, 1.01, 1.2).verdict == "wins"
    assert Comparison(1.1, 0.99, 1.2).verdict == "not slower"
    assert Comparison(0.9, 0.8, 0.99).verdict == "slower"


def test_percentiles_lie_between_order_statistics() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert percentile([7.0], 0.2) == 7.0
    timing = Timing((1.0, 2.0, 3.0, 4.0, 5.0, 6.0))
    assert (timing.median_us, timing.p20_us, timing.p80_us) == (3.5, 2.0, 5.0)


def test_on_the_cpu_there_is_one_pace() -> None:
    """The host is the device there, and a call is timed as it is."""
    ran: list[str] = []
    assert pace_of(lambda: ran.append("paced"), "cpu") == "host"
    interleaved({"a": lambda: ran.append("a")}, "cpu", rounds=7, warmup=0, pace="device")
    assert ran == ["a"] * 7
