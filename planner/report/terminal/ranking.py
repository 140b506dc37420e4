"""The priority list: where one forward's time goes and what could be won."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from planner.counted import counted
from planner.report import figures
from planner.report.model import OpRow, Report
from planner.report.terminal.layout import Cell, Column, Page, line, room_left, table, title

MOST_ROWS = 25
_WIDE = 110
_OTHER_OPERATORS = 0.9
_BOUND_STYLES = {"memory": "cyan", "compute": "magenta", "overhead": "yellow"}


def ranking(report: Report, page: Page) -> Iterator[RenderableType]:
    """One row an operator, shapes and dtypes, in the order of the report."""
    if not report.ops:
        return
    yield from title("Ranking", _summary(report))
    shown = report.ops[:MOST_ROWS]
    timed = any(op.total_us is not None for op in report.ops)
    wide = page.width >= _WIDE
    columns = _columns(timed, wide)
    rows = [_row(op, timed, wide) for op in shown]
    room = room_left(page.width, columns, rows)
    for op, row in zip(shown, rows, strict=True):
        row[1] = _inputs(op, room)
    yield table(columns, rows)
    yield from _footer(report, len(shown), page)


def _summary(report: Report) -> str:
    profile = report.profile
    rows = counted(len(report.ops), "row")
    if profile.kind == "unknown" or profile.wall_us is None:
        return f"{rows}, times unknown" if profile.kind == "unknown" else rows
    how = f" over {counted(profile.iterations, 'run')}" if profile.kind == "measured" else ""
    wall = f"{figures.time(profile.wall_us, profile.kind)} a forward, {profile.kind}{how}"
    return f"{rows}, {wall}"


def _columns(timed: bool, wide: bool) -> list[Column]:
    name = Column("operator", most=24 if wide else 20)
    columns = [name, Column("inputs", grow=1), Column("calls", "right")]
    if not timed:
        cost = [Column("FLOPs", "right"), Column("traffic", "right")]
        return [*columns, *cost, Column("tier"), Column("bound")]
    columns += [Column("total", "right"), Column("share", "right")]
    if not wide:
        return [*columns, Column("bound"), Column("gain", "right")]
    columns += [Column("tier"), Column("bound"), Column("attainable", "right")]
    return [*columns, Column("headroom", "right"), Column("gain", "right")]


def _row(op: OpRow, timed: bool, wide: bool) -> list[Cell]:
    """The cells of `_columns`; the inputs come later, when the room for them is known."""
    cells: list[Cell] = [Text(_short(op.op), "bold"), "", str(op.calls)]
    bound = Text(op.bound or figures.UNKNOWN, _BOUND_STYLES.get(op.bound or "", "dim"))
    tier = op.tier.replace("_", " ")
    if not timed:
        return [*cells, figures.count(op.flops), figures.count(op.bytes, "B"), tier, bound]
    cells += [figures.time(op.total_us, op.kind), figures.percent(op.share)]
    gain = Text(figures.percent(op.model_gain), "bold" if (op.model_gain or 0) >= 0.05 else "")
    if not wide:
        return [*cells, bound, gain]
    attainable, headroom = figures.time(op.attainable_us), figures.time(op.headroom_us)
    return [*cells, tier, bound, attainable, headroom, gain]


def _inputs(op: OpRow, room: int) -> str:
    """As many whole shapes as there is room for."""
    written = (figures.shapes(op.shapes, op.dtypes, most) for most in (4, 3, 2, 1))
    return next((text for text in written if len(text) <= room), figures.shapes(op.shapes, (), 1))


def _footer(report: Report, shown: int, page: Page) -> Iterator[RenderableType]:
    rest = report.ops[shown:]
    if rest:
        shares = [op.share for op in rest]
        known = sum(share for share in shares if share is not None)
        share = "" if None in shares else f", {figures.percent(known)} of the time"
        yield page.rest(f"{counted(len(rest), 'more row')}{share}")
    if any(op.share is not None for op in report.ops):
        yield from _whole(report)
    if report.unlinked_share is not None:
        yield line(_unlinked(report))
    if (report.unlinked_share or 0.0) >= _OTHER_OPERATORS:
        yield line(_another_path(timed=any(op.total_us is not None for op in report.ops)))
    if any(op.kind == "predicted" for op in report.ops):
        yield line(("~ is predicted, not measured", "dim"))
    unknown = sum(op.kind == "unknown" for op in report.ops)
    if 0 < unknown < len(report.ops):
        yield line((f"? is unknown: {unknown} of {len(report.ops)} rows without a time", "dim"))


def _whole(report: Report) -> Iterator[RenderableType]:
    """What the shares are parts of, beside the time of a forward, which is another figure."""
    profile = report.profile
    if profile.kind != "measured" or profile.operators_us is None or profile.wall_us is None:
        return
    operators, forward = figures.time(profile.operators_us), figures.time(profile.wall_us)
    said = f"shares are of {operators}, all operators added up under the profiler"
    slower = ", which slows them" if profile.operators_us > profile.wall_us else ""
    yield line((f"{said}{slower}; a forward without it takes {forward}", "dim"))


def _unlinked(report: Report) -> str:
    if report.unlinked_share == 0:
        return "all operator time joined to the graph"
    said = f"{figures.percent(report.unlinked_share)} of operator time did not join to the graph"
    largest = sorted(report.profile.unlinked, key=lambda pair: -pair[1])[:3]
    if not largest:
        return said
    named = ", ".join(f"{_short(name)} {figures.time(us)}" for name, us in largest)
    return f"{said}: {named}"


def _another_path(*, timed: bool) -> str:
    said = "eager ran other operators than the captured graph, such as a fused fast path"
    return said if timed else f"{said}: no row has a time, so FLOPs and traffic stand there instead"


def _short(op: str) -> str:
    """`aten.gelu.default` as `gelu`, any other overload with its name."""
    return op.removeprefix("aten.").removeprefix("aten::").removesuffix(".default")
