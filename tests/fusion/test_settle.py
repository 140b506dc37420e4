"""Where a region does not stand, what overlapped it is tried, in bounds, and the rest stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from planner.fusion import settle as settling
from planner.fusion.regions import survey_of
from planner.fusion.settle import settle
from planner.fusion.survey import Survey

X = torch.randn(4, 8)


@pytest.fixture
def survey(trace: Any) -> Callable[..., Survey]:
    """The regions of a function of tensors, without named rules."""
    return lambda function, *tensors: survey_of(
        trace(function, *tensors).graph, (), lambda node: node.name
    )


def _names(survey: Survey, bits: int) -> list[str]:
    return [str(node.target).split(".")[1] for node in survey.reach.members(bits)]


def _chain(x: Any) -> Any:
    return x.exp().tanh().sin().cos()


def test_what_stands_is_kept_and_nothing_else_is_tried(survey: Any) -> None:
    found = survey(_chain, X)
    settled = settle(found, lambda _: 3.0)
    assert [_names(found, bits) for bits in settled.kept] == [["exp", "tanh", "sin", "cos"]]
    assert settled.tried == settled.kept
    assert settled.instead == {}


def test_the_halves_of_a_slow_region_have_their_turn(survey: Any) -> None:
    found = survey(_chain, X)
    whole = found.choose()[0]
    settled = settle(found, lambda bits: 1.0 if bits.bit_count() <= 2 else None)
    assert [_names(found, bits) for bits in settled.kept] == [["exp", "tanh"], ["sin", "cos"]]
    assert settled.tried[0] == whole
    assert set(settled.kept) <= set(settled.instead[whole])


def test_a_part_that_does_not_stand_leaves_the_rest(survey: Any) -> None:
    """What holds the sine is slow, however it is cut."""
    found = survey(_chain, X)
    settled = settle(found, lambda bits: None if "sin" in _names(found, bits) else 1.0)
    assert [_names(found, bits) for bits in settled.kept] == [["exp", "tanh"]]


def test_where_nothing_stands_nothing_is_kept_after_a_few_rounds(survey: Any) -> None:
    found = survey(lambda x: _chain(_chain(_chain(x))), X)
    settled = settle(found, lambda _: None)
    assert settled.kept == ()
    assert 1 < len(settled.tried) <= 1 + settling._MOST_FORMS


def test_equal_regions_are_counted_once(survey: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four layers, each cut in two equal halves: one form, within a limit of one."""
    monkeypatch.setattr(settling, "_MOST_FORMS", 1)

    def form(x: Any, w: Any) -> Any:
        for _ in range(4):
            x = (x.exp().exp().exp().exp()) @ w
        return x

    found = survey(form, torch.randn(8, 8), torch.randn(8, 8))
    settled = settle(found, lambda bits: 1.0 if bits.bit_count() == 2 else None)
    assert len(settled.kept) == 8


@pytest.mark.parametrize(("other", "kept"), [(9.0, ["tanh", "sin", "cos"]), (0.5, ["exp", "tanh"])])
def test_of_what_stands_the_measured_saving_decides(
    survey: Any, other: float, kept: list[str]
) -> None:
    """The whole and its second half are slow; what then overlaps the first half stands too."""
    saved = {"exp tanh": 1.0, "tanh sin cos": other}
    found = survey(_chain, X)
    settled = settle(found, lambda bits: saved.get(" ".join(_names(found, bits))))
    assert len(settled.tried) >= 4
    assert [_names(found, bits) for bits in settled.kept] == [kept]


def test_what_saves_no_time_by_measurement_but_stands_is_kept(survey: Any) -> None:
    """Not slower and less traffic: the medians may say either."""
    settled = settle(survey(_chain, X), lambda _: -0.1)
    assert len(settled.kept) == 1
