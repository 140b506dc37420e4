"""What a stage may say while it works: a title for something that takes time, and notes.

The library never prints; it is handed a `Progress` and the command line decides what is shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


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
