"""Report <-> JSON text: strict, and generic over the frozen dataclasses of the model.

Reading refuses what it does not know: a wrong type, an unknown key, a missing key without a
default, another schema version. The error names the file and the key path.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from planner.errors import FuseplanError
from planner.report.model import SCHEMA_VERSION, Report


class UnreadableReport(FuseplanError):
    """A report file that is missing, is not JSON or is not a report of this schema version."""


class _Wrong(Exception):
    """A value that does not fit its type, with the key path to it."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path or 'the top level'}: {what}")


def to_json(report: Report) -> str:
    """The report as indented JSON, keys in the order of the model, ending in a newline.

    JSON knows no infinity: a figure that is not finite is written as null where null is allowed.

    Raises `ValueError` with the key path where it is not.
    """
    return json.dumps(_plain(report, Report, ""), indent=1, allow_nan=False) + "\n"


def from_json(text: str, name: str = "report.json") -> Report:
    """The report that `text` holds; `name` is what errors call it.

    Raises `UnreadableReport`.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise UnreadableReport(
            f"{name}: is not JSON ({error}). Give the report.json that a run wrote, as in "
            "fuseplan fuse MODEL --out DIR."
        ) from error
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version is None:
        raise UnreadableReport(
            f"{name}: is not a fuseplan report: it has no schema_version. Give the report.json "
            "that a run wrote."
        )
    if version != SCHEMA_VERSION:
        raise UnreadableReport(
            f"{name}: has schema_version {version!r}, this fuseplan reads {SCHEMA_VERSION}. "
            "Read it with the fuseplan that wrote it, or make the report anew."
        )
    try:
        report: Report = _typed(content, Report, "")
    except _Wrong as error:
        raise UnreadableReport(f"{name}: {error}") from error
    return report


def read_report(path: Path) -> Report:
    """The report in the run folder `path`, or in the file itself.

    Raises `UnreadableReport`.
    """
    file = path / "report.json" if path.is_dir() else path
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        what = "the folder holds no report.json" if path.is_dir() else "there is no such file"
        raise UnreadableReport(f"{path}: {what}; name the --out folder of a run.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableReport(f"{file}: cannot be read ({error}).") from error
    return from_json(text, str(file))


@cache
def field_types(cls: type) -> dict[str, Any]:
    """The resolved type of every field of a dataclass, in order."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def required_keys(cls: type) -> list[str]:
    """Keys that must be present: those without a default, and `schema_version`. A key added
    within a schema version has a default, so that older reports stay readable.
    """
    return [
        field.name
        for field in dataclasses.fields(cls)
        if field.name == "schema_version"
        or (field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING)
    ]


def optional_of(kind: Any) -> tuple[Any, bool]:
    """`X | None` as (X, True), any other type as (type, False)."""
    if get_origin(kind) in (Union, types.UnionType):
        rest = [member for member in get_args(kind) if member is not types.NoneType]
        if len(rest) == 1:
            return rest[0], True
    return kind, False


def _plain(value: Any, kind: Any, path: str) -> Any:
    kind, nullable = optional_of(kind)
    if value is None:
        return None
    if dataclasses.is_dataclass(kind):
        return {
            name: _plain(getattr(value, name), inner, _join(path, name))
            for name, inner in field_types(kind).items()  # type: ignore[arg-type]
        }
    if isinstance(value, dict):
        inner = get_args(kind)[1]
        return {key: _plain(item, inner, _join(path, key)) for key, item in value.items()}
    if isinstance(value, tuple):
        inners = _members(kind, len(value))
        pairs = enumerate(zip(value, inners, strict=True))
        return [_plain(item, inner, f"{path}[{i}]") for i, (item, inner) in pairs]
    if isinstance(value, float) and not math.isfinite(value):
        if nullable:
            return None
        raise ValueError(f"{path}: {value} cannot be written as JSON")
    return value


def _typed(value: Any, kind: Any, path: str) -> Any:
    kind, nullable = optional_of(kind)
    if value is None and nullable:
        return None
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass(value, kind, path)
    origin = get_origin(kind)
    if origin is Literal:
        if value not in get_args(kind) or isinstance(value, bool):
            raise _Wrong(path, f"{value!r} is none of {', '.join(map(str, get_args(kind)))}")
        return value
    if origin is dict:
        _expect(value, dict, path, nullable)
        inner = get_args(kind)[1]
        return {key: _typed(item, inner, _join(path, key)) for key, item in value.items()}
    if origin is tuple:
        _expect(value, list, path, nullable)
        members = _members(kind, len(value))
        if len(members) != len(value):
            raise _Wrong(path, f"holds {len(value)} items where {len(members)} belong")
        pairs = enumerate(zip(value, members, strict=True))
        return tuple(_typed(item, inner, f"{path}[{i}]") for i, (item, inner) in pairs)
    _expect(value, kind, path, nullable)
    return float(value) if kind is float else value


def _dataclass(value: Any, kind: type, path: str) -> Any:
    _expect(value, dict, path, nullable=False)
    known = field_types(kind)
    unknown = [key for key in value if key not in known]
    if unknown:
        raise _Wrong(_join(path, unknown[0]), "is not a key of a report (a newer fuseplan's?)")
    missing = [key for key in required_keys(kind) if key not in value]
    if missing:
        raise _Wrong(_join(path, missing[0]), "is missing")
    fields = {key: _typed(item, known[key], _join(path, key)) for key, item in value.items()}
    return kind(**fields)


_SAID = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_SAID |= {list: "a list", dict: "an object"}


def _expect(value: Any, kind: type, path: str, nullable: bool) -> None:
    accepted = (int, float) if kind is float else (kind,)
    if isinstance(value, accepted) and (kind is bool or not isinstance(value, bool)):
        return
    said = _SAID[kind] + (" or null" if nullable else "")
    shown = json.dumps(value)
    raise _Wrong(path, f"{shown if len(shown) < 60 else shown[:57] + '...'} is not {said}")


def _members(kind: Any, length: int) -> tuple[Any, ...]:
    members = get_args(kind)
    return (members[0],) * length if len(members) == 2 and members[1] is Ellipsis else members


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
