"""Numerics, the whole model's times, and the sentence that says what the caller gets."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from planner.counted import counted
from planner.report import figures, grouping
from planner.report.model import BenchmarkRow, NumericsRow, Report
from planner.report.terminal.layout import Cell, Column, Page, line, table, title

MOST_FAILURES = 20
_WIDE = 100
_BAR = 20
_RUNS = "runs"
"""The check that a kernel failed when it raised an exception, which the row's case holds."""
_OUTCOMES = {
    "fused": ("The fused module is used", "bold green"),
    "normalized": ("The captured program without kernels is used", "bold green"),
    "original": ("The original module is used", "bold yellow"),
}


def numerics(report: Report, page: Page) -> Iterator[RenderableType]:
    """Every failure, then the check nearest to its limit for each dtype and measure."""
    if not report.numerics:
        return
    failures = [row for row in report.numerics if not row.passed]
    said = f"{len(failures)} failed" if failures else "all passed"
    checks = counted(len(report.numerics), "check")
    yield from title("Numerics", f"{checks} against float64, {said}")
    columns = [
        Column("dtype"),
        Column("measure"),
        Column("checks", "right"),
        Column("worst error", "right"),
        Column("limit", "right"),
        *([Column("eager", "right")] if page.width >= _WIDE else []),
        Column("of", grow=1, wrap=True),
    ]
    for row in failures[:MOST_FAILURES]:
        yield line(("failed", "red"), f" {row.subject}, {row.dtype}: {_failure(row)}")
    if len(failures) > MOST_FAILURES:
        yield page.rest(counted(len(failures) - MOST_FAILURES, "more failure"))
    measured = [row for row in report.numerics if row.measure != _RUNS]
    if measured:
        yield table(columns, [_numerics_row(g, page.width) for g in grouping.numerics(measured)])
    yield from _left_out(report)


def benchmark(report: Report, page: Page) -> Iterator[RenderableType]:
    """All contestants, timed in turn in one process."""
    rows = report.benchmark.rows
    if not rows:
        return
    rounds = report.benchmark.rounds
    yield from title(
        "Benchmark", f"one forward, {counted(rounds, 'round')} in turn" if rounds else ""
    )
    wide = page.width >= _WIDE
    columns = [
        Column(""),
        Column("median", "right"),
        Column("p20 to p80", "right"),
        Column("speedup", "right"),
        Column("cold start", "right"),
        Column("peak", "right"),
        *([Column("")] if wide else []),
    ]
    slowest = max((row.median_us for row in rows if row.median_us is not None), default=1.0)
    yield table(columns, [_benchmark_row(row, slowest, wide) for row in rows])
    for row in rows:
        if row.reason:
            yield line(f"{row.name.replace('_', ' ')}: {row.reason}")
    low, high = report.benchmark.ratio_low, report.benchmark.ratio_high
    if low is not None and high is not None:
        interval = f"{figures.ratio(low)} to {figures.ratio(high)}"
        yield line(f"eager over fused, pair by pair: 95 % interval {interval}")


def outcome(report: Report, _page: Page) -> Iterator[RenderableType]:
    """What the caller gets and why."""
    if report.outcome is None:
        return
    what, style = _OUTCOMES[report.outcome.result]
    yield Text("")
    extra = report.outcome.extra_weight_bytes
    copies = f"; {extra / 1e6:.1f} MB of weights are copies, folded or packed" if extra else ""
    yield line((what, style), f": {report.outcome.reason}{copies}")


def _failure(row: NumericsRow) -> str:
    """The error past its limit; a kernel that does not run has none."""
    if row.measure == _RUNS:
        return f"it does not run: {row.case}" if row.case else "it does not run"
    measure = f"{row.measure} " if row.measure else ""
    eager = f", eager {figures.error(row.eager_error)}" if row.eager_error is not None else ""
    error = f"error {figures.error(row.error)} past {figures.error(row.limit)}"
    return f"{measure}{error}{eager}"


def _left_out(report: Report) -> Iterator[RenderableType]:
    """What `--precision high` takes from the reference as from the kernels."""
    names = {name for row in report.fusions if row.kept for name in row.unrounded}
    if names:
        casts = counted(len(names), "cast")
        yield line((f"float64 lacks {casts} of the model, as the kernels do", "dim"))


def _numerics_row(group: grouping.NumericsGroup, width: int) -> list[Cell]:
    worst = group.worst
    checks = Text(str(group.checks))
    if group.failed:
        checks = Text(f"{group.failed} of {group.checks} failed", "red")
    eager = [figures.error(worst.eager_error)] if width >= _WIDE else []
    return [
        Text(group.dtype, "bold"),
        group.measure or "-",
        checks,
        figures.error(worst.error),
        figures.error(worst.limit),
        *eager,
        worst.subject,
    ]


def _benchmark_row(row: BenchmarkRow, slowest: float, wide: bool) -> list[Cell]:
    style = "bold green" if row.name == "fused" else ""
    spread = "-"
    if row.p20_us is not None and row.p80_us is not None:
        spread = f"{figures.time(row.p20_us)} to {figures.time(row.p80_us)}"
    bar = [Text(_bar(row.median_us, slowest), style or "dim")] if wide else []
    return [
        Text(row.name.replace("_", " "), style),
        Text(figures.time(row.median_us), style),
        spread,
        Text(figures.ratio(row.speedup_vs_eager), style),
        "-" if row.cold_s is None else figures.time(row.cold_s * 1e6),
        figures.UNKNOWN if row.peak_bytes is None else figures.count(row.peak_bytes, "B"),
        *bar,
    ]


def _bar(median_us: float | None, slowest: float) -> str:
    if median_us is None:
        return ""
    return "█" * max(1, round(_BAR * median_us / slowest))
