"""What a stage may say while it works: a title for something that takes time, and notes.

The library never prints; it is handed a `Progress` and the command line decides what is shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from planner.report.model import StageRow
from planner.timing import now_s


class Progress(Protocol):
    """Told what is being done. Calls are made from one thread."""

    def stage(self, title: str) -> AbstractContextManager[None]:
        """Open around the work that `title` names; stages may nest."""
        ...

    def note(self, text: str) -> None:
        """One line worth knowing now, that the report holds too or does not need."""
        ...


class Silent:
    """A `Progress` that shows nothing."""

    @contextmanager
    def stage(self, title: str) -> Iterator[None]:  # noqa: ARG002 - the protocol names it
        yield

    def note(self, text: str) -> None:
        pass


SILENT = Silent()


class Timed:
    """A `Progress` that keeps the seconds of every stage and passes everything on to another."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self._rows: list[StageRow] = []
        self._depth = 0

    @property
    def rows(self) -> tuple[StageRow, ...]:
        """The stages in the order begun; those still open have taken 0 seconds."""
        return tuple(self._rows)

    @contextmanager
    def stage(self, title: str) -> Iterator[None]:
        place, begin = len(self._rows), now_s()
        self._rows.append(StageRow(title, self._depth, 0.0))
        self._depth += 1
        try:
            with self._shown.stage(title):
                yield
        finally:
            self._depth -= 1
            self._rows[place] = StageRow(title, self._depth, now_s() - begin)

    def note(self, text: str) -> None:
        self._shown.note(text)
