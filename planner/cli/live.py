"""Progress on stderr: a line that lives while a stage runs on a terminal, one line a stage
elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress as Bars
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from planner.progress import SILENT, Progress

_DEEPEST_LINE = 1


class _Lines:
    """One plain line a stage, for a log or a pipe; the steps of a kernel are left out."""

    def __init__(self, console: Console) -> None:
        self._console, self._depth = console, 0

    @contextmanager
    def stage(self, title: str) -> Iterator[None]:
        if self._depth <= _DEEPEST_LINE:
            self._console.print(title)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def note(self, text: str) -> None:
        self._console.print(f"  {text}")


class _Live:
    """A spinner with the time spent for every open stage; done stages vanish, notes stay."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars

    @contextmanager
    def stage(self, title: str) -> Iterator[None]:
        task = self._bars.add_task(title, total=None)
        try:
            yield
        finally:
            self._bars.remove_task(task)

    def note(self, text: str) -> None:
        self._bars.console.print(text, style="dim")


@contextmanager
def live_progress(*, quiet: bool) -> Iterator[Progress]:
    """A `Progress` on stderr for the duration of the block; silent when `quiet`."""
    if quiet:
        yield SILENT
        return
    console = Console(file=sys.stderr, markup=False, highlight=False, emoji=False, soft_wrap=True)
    if not console.is_terminal:
        yield _Lines(console)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    # the session redirects stdout already; few refreshes, because they share the interpreter with
    # what is being timed
    with Bars(
        *columns, console=console, transient=True, redirect_stdout=False, refresh_per_second=4
    ) as bars:
        yield _Live(bars)
