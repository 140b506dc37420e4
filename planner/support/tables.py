"""The committed operator tables: names, strict loading, deterministic writing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from planner.errors import FuseplanError
from planner.facts import BadFacts, facts_folder, read_yaml
from planner.support.backend_table import (
    BackendTable,
    ChipEntry,
    Provenance,
    Source,
    SupportEntry,
    on_chip,
)
from planner.support.table_reader import parse_table
from planner.support.table_writer import format_table

__all__ = [
    "BackendTable",
    "ChipEntry",
    "Provenance",
    "Source",
    "SupportEntry",
    "UnknownBackend",
    "dump_table",
    "load_table",
    "read_table",
    "require_tables",
    "table_names",
]


class UnknownBackend(FuseplanError):
    """A backend, or a chip of one, that no table describes."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(f"There is no operator table '{name}'. Known: {', '.join(known)}.")


def table_names(folder: Path | None = None) -> tuple[str, ...]:
    """The backends that have a table, sorted. `folder` defaults to the committed tables."""
    return tuple(sorted(path.stem for path in _folder(folder).glob("*.yaml")))


def load_table(name: str, folder: Path | None = None) -> BackendTable:
    """The table of a backend; "name@chip" gives it as it stands for that chip.

    Raises `UnknownBackend` for a name or chip without a table, `BadFacts` for a table that breaks
    the format.
    """
    backend, _, chip = name.partition("@")
    _require(name, folder)
    table = read_table(_folder(folder) / f"{backend}.yaml")
    if not chip:
        return table
    if chip not in table.chips:
        chips = tuple(f"{backend}@{known}" for known in table.chips)
        raise UnknownBackend(name, chips or table_names(folder))
    return on_chip(table, chip)


def require_tables(names: Iterable[str]) -> None:
    """Whether there is a table for each name, before anything is done with the first.

    Raises `UnknownBackend`. Only a table whose chip is asked for is read.
    """
    for name in names:
        if "@" in name:
            load_table(name)
        else:
            _require(name)


def read_table(path: Path) -> BackendTable:
    """The table in the file `path`, whose stem must be the table's name.

    Raises `BadFacts` that names the file and the entry.
    """
    table = parse_table(read_yaml(path), path)
    if table.name != path.stem:
        raise BadFacts(f"{path}: holds the table '{table.name}'; name the file {table.name}.yaml.")
    return table


def dump_table(table: BackendTable, path: Path) -> None:
    """Write the table to `path`; the same table gives the same bytes."""
    path.write_text(format_table(table), encoding="utf-8", newline="\n")


def _require(name: str, folder: Path | None = None) -> None:
    known = table_names(folder)
    if name.partition("@")[0] not in known:
        raise UnknownBackend(name, known)


def _folder(folder: Path | None) -> Path:
    return facts_folder() / "backends" if folder is None else folder
