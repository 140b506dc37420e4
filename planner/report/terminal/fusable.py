"""How much of the time that kernels can take they have taken, and what is left with the reason."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from planner.counted import counted
from planner.report import figures
from planner.report.model import FusableTime, LeftRow, Report
from planner.report.terminal.layout import Cell, Column, Page, line, table, title

MOST_LEFT = 8


def fusable(report: Report, page: Page) -> Iterator[RenderableType]:
    """The covered share of the time outside products, convolutions and attention."""
    found = report.fusable
    if found is None:
        return
    whole = figures.time(found.total_us)
    yield from title("Covered", f"{figures.percent(found.covered)} of {whole}")
    apart = "outside products, convolutions and attention, which take"
    yield line((f"{apart} {figures.time(found.products_us)}: {_parts(found)}", "dim"))
    if not found.left:
        return
    columns = [
        Column("left"),
        Column("calls", "right"),
        Column("time", "right"),
        Column("reason", grow=1, wrap=True),
        Column("node"),
    ]
    yield table(columns, [_row(row) for row in found.left[:MOST_LEFT]])
    if len(found.left) > MOST_LEFT:
        yield page.rest(counted(len(found.left) - MOST_LEFT, "more operator"))


def _parts(found: FusableTime) -> str:
    left_us = found.total_us - found.in_kernels_us - found.rewritten_us - found.unlinked_us
    parts = {
        "in kernels": found.in_kernels_us,
        "rewritten away": found.rewritten_us,
        "left": max(left_us, 0.0),
        "not in the captured program": found.unlinked_us,
    }
    said = [f"{figures.time(us)} {what}" for what, us in parts.items() if us]
    return ", ".join(said) or "none"


def _row(row: LeftRow) -> list[Cell]:
    return [
        row.op.removeprefix("aten."),
        str(row.calls),
        figures.time(row.us),
        row.reason,
        row.node,
    ]
