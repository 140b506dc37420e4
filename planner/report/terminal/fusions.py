"""What was fused and what was not, alike places folded into one row."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from planner.counted import counted
from planner.report import figures, grouping
from planner.report.model import Report
from planner.report.terminal.layout import Cell, Column, Page, line, table, title

MOST_ROWS = 30
MOST_REJECTIONS = 15
_WIDE = 110
_ON_CPU = (
    "timed on CPU: the same regions compiled by Inductor; the generated Triton text runs on CUDA"
)


def fusions(report: Report, page: Page) -> Iterator[RenderableType]:
    """Rule, place, time before and after, and whether it was kept and why."""
    if not report.fusions:
        if report.outcome is not None:
            yield from title("Fusions", "none")
        return
    kept = sum(row.kept for row in report.fusions)
    yield from title("Fusions", f"{kept} of {counted(len(report.fusions), 'place')} kept")
    groups = grouping.fusions(report.fusions)
    wide = page.width >= _WIDE
    columns = [
        Column("", "right"),
        Column("rule"),
        Column("where", grow=3, wrap=True),
        Column("before → after", "right"),
        Column("ratio", "right"),
        Column("kept"),
        *([Column("reason", grow=4, wrap=True)] if wide else []),
    ]
    yield table(columns, [_row(group, wide) for group in groups[:MOST_ROWS]])
    if len(groups) > MOST_ROWS:
        yield page.rest(f"{len(groups) - MOST_ROWS} more")
    if any(group.places > 1 for group in groups):
        yield line(("times are for one place, the mean of all", "dim"))
    if report.environment.device.startswith("cpu"):
        yield line((_ON_CPU, "dim"))


def rejections(report: Report, page: Page) -> Iterator[RenderableType]:
    """Where a rule nearly applied, the most frequent reason first, without the places that were
    tried: these stand among the fusions with the same reason.
    """
    tried = {(row.rule, row.reason) for row in report.fusions if not row.kept}
    left = [row for row in report.rejections if (row.rule, row.reason) not in tried]
    groups = grouping.rejections(left)
    if not groups:
        return
    places = counted(len(left), "place")
    reasons = counted(len(groups), "reason")
    yield from title("Not fused", f"{places}, {reasons}")
    columns = [
        Column("", "right"),
        Column("rule"),
        Column("stage"),
        Column("reason", grow=1, wrap=True),
        Column("node"),
    ]
    rows = [
        (_times(number), row.rule, row.stage, row.reason, row.node)
        for row, number in groups[:MOST_REJECTIONS]
    ]
    yield table(columns, rows)
    if len(groups) > MOST_REJECTIONS:
        yield page.rest(counted(len(groups) - MOST_REJECTIONS, "more reason"))


def _row(group: grouping.FusionGroup, wide: bool) -> list[Cell]:
    row = group.first
    source = figures.place(row.source, 2 if wide else 1) if row.source else None
    where = Text(source or group.module or "the root module")
    if source and group.module:
        where.append(f"\n{group.module}", style="dim")
    if not wide and row.reason:
        where.append(f"\n{row.reason}")
    verdict = Text("yes", "green") if row.kept else Text("no", "yellow")
    cells: list[Cell] = [
        _times(group.places),
        Text(row.rule, "bold"),
        where,
        _change(group),
        figures.ratio(group.ratio),
        verdict,
    ]
    return [*cells, row.reason] if wide else cells


def _change(group: grouping.FusionGroup) -> str:
    """Measured where it is, else the predicted time, marked."""
    before = figures.time(group.before_us)
    if group.measured_us is None and group.predicted_us is not None:
        return f"{before} → {figures.time(group.predicted_us, 'predicted')}"
    return f"{before} → {figures.time(group.measured_us)}"


def _times(number: int) -> str:
    return f"x{number}" if number > 1 else ""
