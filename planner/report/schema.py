"""The JSON Schema of report.json, generated from the dataclasses so that the two cannot part.

The committed copy is coverage/schema/report.schema.json.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Literal, get_args, get_origin

from planner.report.io import field_types, optional_of, required_keys
from planner.report.model import SCHEMA_VERSION, Report

_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean"}


def report_schema() -> dict[str, Any]:
    """The schema (draft 2020-12) as plain data; every dataclass is one of `$defs`."""
    definitions: dict[str, Any] = {}
    top = _of(Report, definitions)
    definitions["Report"]["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "fuseplan report",
        **top,
        "$defs": dict(sorted(definitions.items())),
    }


def schema_text() -> str:
    """The committed file's text."""
    return json.dumps(report_schema(), indent=1) + "\n"


def _of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    kind, nullable = optional_of(kind)
    schema = _one(kind, definitions)
    return {"anyOf": [schema, {"type": "null"}]} if nullable else schema


def _one(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _reference(kind, definitions)
    origin, members = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"enum": list(members)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _of(members[1], definitions)}
    if origin is tuple and len(members) == 2 and members[1] is Ellipsis:
        return {"type": "array", "items": _of(members[0], definitions)}
    if origin is tuple:
        items = [_of(member, definitions) for member in members]
        size = len(items)
        return {"type": "array", "prefixItems": items, "minItems": size, "maxItems": size}
    return {"type": _SIMPLE[kind]}


def _reference(kind: type, definitions: dict[str, Any]) -> dict[str, Any]:
    name = kind.__name__
    if name not in definitions:
        definitions[name] = {}  # holds the place while the fields are walked
        schema: dict[str, Any] = {"type": "object"}
        if kind.__doc__ and not kind.__doc__.startswith(f"{name}("):  # not the generated one
            schema["description"] = " ".join(kind.__doc__.split())
        schema["properties"] = {
            key: _of(inner, definitions) for key, inner in field_types(kind).items()
        }
        schema["required"] = required_keys(kind)
        schema["additionalProperties"] = False
        definitions[name] = schema
    return {"$ref": f"#/$defs/{name}"}
