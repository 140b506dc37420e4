"""A backend table from parsed YAML, strictly: whatever is wrong is named by file and entry."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from planner.facts import BadFacts
from planner.report.model import LEVELS
from planner.support.backend_table import (
    FAMILIES,
    SOURCE_KINDS,
    BackendTable,
    ChipEntry,
    Provenance,
    Source,
    SupportEntry,
)

TABLE_SCHEMA_VERSION = 1

_TABLE_REQUIRED = ("schema", "name", "title", "family", "default", "provenance", "entries")
_TABLE_OPTIONAL = ("dispatch_key", "chips", "further_sources")
_PROVENANCE_REQUIRED = ("kind", "ref", "checked", "packages", "extractor")
_PROVENANCE_OPTIONAL = ("file", "sha256")
_LIMITS = ("dtypes", "condition", "note")
_ENTRY_OPTIONAL = (*_LIMITS, "via", "evidence", "disputed", "chips")


def parse_table(raw: Any, path: Path) -> BackendTable:
    """The table that the parsed YAML `raw` of `path` describes.

    Raises `BadFacts` that names the file and the entry, for a missing or unknown field, a level,
    kind or family that does not exist, a value of the wrong type.
    """
    where = str(path)
    _check_fields(raw, _TABLE_REQUIRED, _TABLE_OPTIONAL, where)
    if raw["schema"] != TABLE_SCHEMA_VERSION:
        raise BadFacts(
            f"{where}: schema {raw['schema']!r} is not the one this release reads "
            f"({TABLE_SCHEMA_VERSION}); make the table anew."
        )
    _check_fields(raw["default"], ("level", "reason"), (), f"{where}, default")
    further = _mapping(raw.get("further_sources", {}), f"{where}, further_sources")
    chips = _texts(raw.get("chips", []), f"{where}, chips")
    provenance = _provenance(raw["provenance"], f"{where}, provenance")
    table = BackendTable(
        name=_text(raw["name"], f"{where}, name"),
        title=_text(raw["title"], f"{where}, title"),
        family=_one_of(raw["family"], FAMILIES, f"{where}, family"),
        default_level=_one_of(raw["default"]["level"], LEVELS, f"{where}, default"),
        default_reason=_text(raw["default"]["reason"], f"{where}, default"),
        provenance=provenance,
        entries={
            op: _entry(op, value, provenance.citation, f"{where}, entry '{op}'")
            for op, value in _mapping(raw["entries"], f"{where}, entries").items()
        },
        dispatch_key=_optional_text(raw.get("dispatch_key"), f"{where}, dispatch_key"),
        chips=chips,
        further_sources={
            key: _provenance(value, f"{where}, further_sources '{key}'")
            for key, value in further.items()
        },
    )
    _check_references(table, where)
    return table


def _entry(op: Any, raw: Any, citation: str, where: str) -> SupportEntry:
    _text(op, where)
    if isinstance(raw, str):
        level = _one_of(raw, LEVELS, where)
        return SupportEntry(op, level, None, None, None, citation)
    _check_fields(raw, ("level",), _ENTRY_OPTIONAL, where)
    disputed = _mapping(raw.get("disputed", {}), f"{where}, disputed")
    chips = _mapping(raw.get("chips", {}), f"{where}, chips")
    limits = _limits(raw, where)
    return SupportEntry(
        op=op,
        level=limits.level,
        dtypes=limits.dtypes,
        condition=limits.condition,
        note=limits.note,
        evidence=_optional_text(raw.get("evidence"), f"{where}, evidence") or citation,
        via=_optional_text(raw.get("via"), f"{where}, via"),
        disputed=tuple(
            (key, _one_of(level, LEVELS, f"{where}, disputed")) for key, level in disputed.items()
        ),
        chips={
            chip: _chip_entry(value, f"{where}, chip '{chip}'") for chip, value in chips.items()
        },
    )


def _chip_entry(raw: Any, where: str) -> ChipEntry:
    if isinstance(raw, str):
        return ChipEntry(_one_of(raw, LEVELS, where))
    _check_fields(raw, ("level",), _LIMITS, where)
    return _limits(raw, where)


def _limits(raw: Mapping[str, Any], where: str) -> ChipEntry:
    level = _one_of(raw["level"], LEVELS, where)
    condition = _optional_text(raw.get("condition"), f"{where}, condition")
    if (level == "conditional") != (condition is not None):
        raise BadFacts(
            f"{where}: the level 'conditional' and the field 'condition' go together; "
            "give both or neither."
        )
    dtypes = raw.get("dtypes")
    return ChipEntry(
        level,
        None if dtypes is None else _texts(dtypes, f"{where}, dtypes"),
        condition,
        _optional_text(raw.get("note"), f"{where}, note"),
    )


def _provenance(raw: Any, where: str) -> Provenance:
    _check_fields(raw, _PROVENANCE_REQUIRED, _PROVENANCE_OPTIONAL, where)
    packages = _mapping(raw["packages"], f"{where}, packages")
    if not packages:
        raise BadFacts(f"{where}: 'packages' is empty; name the package and its version.")
    return Provenance(
        source=Source(
            _one_of(raw["kind"], SOURCE_KINDS, f"{where}, kind"),
            _text(raw["ref"], f"{where}, ref"),
            _text(raw["checked"], f"{where}, checked"),
        ),
        packages={key: _text(value, f"{where}, packages") for key, value in packages.items()},
        extractor=_text(raw["extractor"], f"{where}, extractor"),
        file=_optional_text(raw.get("file"), f"{where}, file"),
        sha256=_optional_text(raw.get("sha256"), f"{where}, sha256"),
    )


def _check_references(table: BackendTable, where: str) -> None:
    for entry in table.entries.values():
        for source, _ in entry.disputed:
            if source not in table.further_sources:
                raise BadFacts(
                    f"{where}, entry '{entry.op}': disputed by '{source}', which further_sources "
                    "does not hold; add it there."
                )
        for chip in entry.chips:
            if chip not in table.chips:
                raise BadFacts(
                    f"{where}, entry '{entry.op}': the chip '{chip}' is not among the table's "
                    f"chips ({', '.join(table.chips) or 'none'}); add it there."
                )


def _check_fields(
    raw: Any, required: tuple[str, ...], optional: tuple[str, ...], where: str
) -> None:
    fields = _mapping(raw, where)
    for name in required:
        if name not in fields:
            raise BadFacts(f"{where}: the field '{name}' is missing; add it.")
    for name in fields:
        if name not in required and name not in optional:
            known = ", ".join((*required, *optional))
            raise BadFacts(f"{where}: the field '{name}' is unknown; the fields are {known}.")


def _mapping(raw: Any, where: str) -> dict[Any, Any]:
    if not isinstance(raw, dict):
        raise BadFacts(f"{where}: must be a mapping, is {type(raw).__name__}.")
    return raw


def _text(raw: Any, where: str) -> str:
    if not isinstance(raw, str) or not raw:
        raise BadFacts(f"{where}: must be text, is {raw!r}; quote it if YAML reads it otherwise.")
    return raw


def _optional_text(raw: Any, where: str) -> str | None:
    return None if raw is None else _text(raw, where)


def _texts(raw: Any, where: str) -> tuple[str, ...]:
    if not isinstance(raw, list):
        raise BadFacts(f"{where}: must be a list, is {type(raw).__name__}.")
    return tuple(_text(item, where) for item in raw)


def _one_of(raw: Any, allowed: tuple[str, ...], where: str) -> Any:
    if raw not in allowed:
        raise BadFacts(f"{where}: {raw!r} is not one of {', '.join(allowed)}.")
    return cast(Any, raw)
