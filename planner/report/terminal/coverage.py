"""Coverage a backend: three figures, then every operator that is not covered as it is, with
the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from planner.counted import counted
from planner.report import figures, grouping
from planner.report.model import (
    COVERED_LEVELS,
    UNCOVERED_LEVELS,
    UNKNOWN_LEVEL,
    BackendCoverage,
    Report,
)
from planner.report.terminal.layout import Column, Page, line, table, title

MOST_ROWS = 20


def coverage(report: Report, page: Page) -> Iterator[RenderableType]:
    """The backends side by side, then one table each for what needs a reason."""
    if not report.coverage:
        return
    operators = len({op.op for op in report.ops})
    yield from title("Coverage", counted(operators, "distinct operator"))
    columns = [
        Column("backend"),
        Column("by operator", "right"),
        Column("by calls", "right"),
        Column("by time", "right"),
        Column("unknown", "right"),
        Column("partitions", "right"),
        Column("table", grow=1, wrap=True),
    ]
    yield table(columns, [_figures(*item) for item in report.coverage.items()])
    for backend, found in report.coverage.items():
        yield from _reasons(backend, found, report, page)


def _table_in_short(provenance: Mapping[str, str]) -> str:
    """Which release the table is of and when it was checked; report.json holds the rest. A table
    without these says all it has.
    """
    if "release" not in provenance:
        return ", ".join(f"{key} {value}" for key, value in provenance.items())
    words = [provenance["release"]]
    if provenance.get("matches_installed") == "no":
        words.append(f"installed is {provenance.get('installed', 'another')}")
    if "checked" in provenance:
        words.append(f"checked {provenance['checked']}")
    return ", ".join(words)


def _figures(backend: str, found: BackendCoverage) -> list[str | Text]:
    return [
        Text(backend, "bold"),
        _share(found.by_op),
        _share(found.by_calls),
        _share(found.by_time),
        str(found.unknown_ops),
        figures.UNKNOWN if found.partitions is None else str(found.partitions),
        _table_in_short(found.table),
    ]


def _share(fraction: float | None) -> Text:
    complete = fraction is not None and fraction >= 1
    return Text(figures.percent(fraction), "green" if complete else "yellow")


def _reasons(
    backend: str, found: BackendCoverage, report: Report, page: Page
) -> Iterator[RenderableType]:
    groups = grouping.not_direct(found, report.ops)
    yield Text("")
    if not groups:
        yield line((backend, "bold"), ": every operator is covered as it is")
        return
    yield line((backend, "bold"), f": {_said([group.level for group in groups])}")
    columns = [
        Column("operator"),
        Column("level"),
        Column("calls", "right"),
        Column("time", "right"),
        Column("reason", grow=1, wrap=True),
    ]
    rows = [
        (
            group.op.removeprefix("aten.").removesuffix(".default"),
            Text(group.level, _style(group.level)),
            str(group.calls),
            figures.percent(group.share),
            group.reason,
        )
        for group in sorted(groups, key=lambda group: group.level in COVERED_LEVELS)[:MOST_ROWS]
    ]
    yield table(columns, rows)
    if len(groups) > MOST_ROWS:
        yield page.rest(f"{len(groups) - MOST_ROWS} more")


def _said(levels: Sequence[str]) -> str:
    """How many operators stand in the table below, the worst first: `1 operator not covered`."""
    numbers = {
        "not covered": sum(level in UNCOVERED_LEVELS for level in levels),
        "unknown": levels.count(UNKNOWN_LEVEL),
        "covered indirectly": sum(level in COVERED_LEVELS for level in levels),
    }
    parts = [(number, what) for what, number in numbers.items() if number]
    (number, what), *others = parts
    first = f"{counted(number, 'operator')} {what}"
    return ", ".join((first, *(f"{number} {what}" for number, what in others)))


def _style(level: str) -> str:
    if level in COVERED_LEVELS:
        return "green"
    return "yellow" if level == UNKNOWN_LEVEL else "red"
