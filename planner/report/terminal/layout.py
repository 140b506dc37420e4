"""The few shapes that every section is made of: title, line, and table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

Cell = str | Text


@dataclass(frozen=True, slots=True)
class Page:
    """Columns of text there are, and whether the run is kept in a folder."""

    width: int
    kept: bool

    def rest(self, said: str) -> Padding:
        """The line under a table that is cut: what is left out, and where all of it is."""
        where = "report.json has all" if self.kept else "--out DIR keeps all in report.json"
        return line((f"… {said}: {where}", "dim"))


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. `grow` columns share what width is left; only they, and those with a
    `most` width, are ever cut or wrapped.
    """

    title: str
    align: Literal["left", "right"] = "left"
    grow: int = 0
    wrap: bool = False
    most: int | None = None


def title(text: str, more: str = "") -> list[RenderableType]:
    """A section's title, ruled to the full width."""
    head = Text(text, style="bold")
    if more:
        head.append(f"  {more}", style="not bold")
    return [Text(""), Rule(head, align="left", style="dim", characters="─")]


def line(*parts: tuple[str, str] | str) -> Padding:
    """One paragraph of plain and styled parts; continuation lines are indented alike."""
    text = Text()
    for part in parts:
        text.append(part) if isinstance(part, str) else text.append(part[0], style=part[1])
    return Padding(text, (0, 0, 0, 1))


def labelled(rows: Iterable[tuple[str, str]]) -> Table:
    """Short labels with values that wrap under themselves."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows:
        table.add_row(Text(f" {label}"), Text(value))
    return table


def table(columns: Sequence[Column], rows: Iterable[Sequence[Cell]]) -> Table:
    """A table without lines, two blanks between columns, one line a row unless a column wraps."""
    held = [[Text(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    result = Table(
        box=None,
        pad_edge=True,
        padding=(0, 1, 0, 1),
        header_style="dim italic",
        expand=any(column.grow for column in columns),
    )
    for position, column in enumerate(columns):
        result.add_column(
            column.title,
            justify=column.align,
            ratio=column.grow or None,
            no_wrap=not column.wrap,
            overflow="fold" if column.wrap else "ellipsis",
            min_width=None if column.grow else _width(column, position, held),
            max_width=column.most,
        )
    for row in held:
        result.add_row(*row)
    return result


def room_left(width: int, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> int:
    """Columns of text that `table` leaves to its one `grow` column at this width."""
    held = [[Text(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    fixed = [_width(c, i, held) for i, c in enumerate(columns) if not c.grow]
    return width - sum(fixed) - 2 * len(columns)


def _width(column: Column, position: int, rows: Sequence[Sequence[Text]]) -> int:
    """What the column needs, so that figures are never cut."""
    widest = max([len(column.title), *(row[position].cell_len for row in rows)])
    return min(widest, column.most) if column.most else widest
