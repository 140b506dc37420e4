"""Stages kept with their seconds while another progress shows them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from planner.progress import SILENT, Timed


class Heard:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    @contextmanager
    def stage(self, title: str) -> Iterator[None]:
        self.said.append(f"begin {title}")
        yield
        self.said.append(f"end {title}")

    def note(self, text: str) -> None:
        self.said.append(text)


def test_stages_are_kept_in_the_order_begun_with_their_depth() -> None:
    timed = Timed(SILENT)
    with timed.stage("plan"):
        with timed.stage("verify"):
            pass
        with timed.stage("race"):
            pass
    with timed.stage("report"):
        pass
    rows = [(row.title, row.depth) for row in timed.rows]
    assert rows == [("plan", 0), ("verify", 1), ("race", 1), ("report", 0)]


def test_a_stage_has_the_time_of_those_inside() -> None:
    timed = Timed(SILENT)
    with timed.stage("plan"), timed.stage("verify"):
        sum(range(1000))
    outer, inner = timed.rows
    assert outer.seconds >= inner.seconds > 0


def test_everything_is_passed_on() -> None:
    heard = Heard()
    timed = Timed(heard)
    with timed.stage("plan"):
        timed.note("a note")
    assert heard.said == ["begin plan", "a note", "end plan"]


def test_a_stage_that_raises_is_kept_too() -> None:
    timed = Timed(SILENT)
    with pytest.raises(ValueError, match="broken"), timed.stage("plan"):
        raise ValueError("broken")
    with timed.stage("report"):
        pass
    assert [(row.title, row.depth) for row in timed.rows] == [("plan", 0), ("report", 0)]
    assert timed.rows[0].seconds > 0
