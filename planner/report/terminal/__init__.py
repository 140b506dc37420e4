"""A report as text for a terminal: data in, text out."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from planner.report.model import Report
from planner.report.terminal.coverage import coverage
from planner.report.terminal.fusable import fusable
from planner.report.terminal.fusions import fusions, rejections
from planner.report.terminal.layout import Page
from planner.report.terminal.measures import benchmark, numerics, outcome
from planner.report.terminal.overview import capture, header
from planner.report.terminal.ranking import ranking

NARROWEST = 60
_SECTIONS = (
    header,
    capture,
    ranking,
    coverage,
    fusions,
    rejections,
    fusable,
    numerics,
    benchmark,
    outcome,
)


def render(report: Report, *, width: int = 100, color: bool = False, kept: bool = True) -> str:
    """The whole report, lines of at most `width` columns (60 at least), without trailing blanks.

    `kept` says whether there is a folder with the report.json that holds what is cut here.

    Sections without content are left out. Colour only repeats what the words say.
    """
    text = StringIO()
    console = Console(
        file=text,
        width=max(width, NARROWEST),
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        legacy_windows=False,
        markup=False,
        highlight=False,
        emoji=False,
    )
    page = Page(console.width, kept)
    for section in _SECTIONS:
        for part in section(report, page):
            console.print(part)
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    return "\n".join(lines).rstrip("\n") + "\n"
