"""A kernel's source as JSON text and back, exactly, so that another process can define its
operator.

Every dataclass that `KernelSource` is made of is written field by field under its class's name;
the list of classes follows from the annotations. Nothing is executed by reading.
"""

from __future__ import annotations

import dataclasses
import json
import math
from functools import cache
from typing import Any, get_args, get_type_hints

from fusion_kernels.emit.source import KernelSource


class UnreadableKernel(ValueError):
    """A text that is no kernel of this version of fuseplan."""


def to_json(source: KernelSource) -> str:
    """`source` as JSON, all of it but the kernel's text, which is a file of its own.

    Raises `TypeError` for a value that a region cannot hold.
    """
    return json.dumps(_plain(dataclasses.replace(source, text="")), indent=1, allow_nan=False)


def from_json(content: str, text: str) -> KernelSource:
    """The source that `to_json` wrote as `content`, with its kernel's `text`.

    Fields that have a default may be missing. Raises `UnreadableKernel` for anything else that
    is not as this version writes it.
    """
    try:
        source = _value(json.loads(content))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UnreadableKernel(f"not a kernel of this version: {error}") from error
    if not isinstance(source, KernelSource):
        raise UnreadableKernel(f"not a kernel but a {type(source).__name__}")
    return dataclasses.replace(source, text=text)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {"map": [[_plain(key), _plain(item)] for key, item in value.items()]}
    if type(value) in _classes().values():
        fields = {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"class": type(value).__name__, "fields": fields}
    raise TypeError(f"a kernel cannot hold {value!r}")


def _value(content: Any) -> Any:
    if isinstance(content, list):
        return tuple(_value(item) for item in content)
    if not isinstance(content, dict):
        return content
    if "float" in content:
        return float(content["float"])
    if "map" in content:
        return {_value(key): _value(item) for key, item in content["map"]}
    cls = _classes()[content["class"]]
    return cls(**{name: _value(item) for name, item in content["fields"].items()})


@cache
def _classes() -> dict[str, type[Any]]:
    """The dataclasses that a kernel source is made of, by name."""
    found: dict[str, type[Any]] = {}
    waiting: list[Any] = [KernelSource]
    while waiting:
        kind = waiting.pop()
        waiting.extend(get_args(kind))
        if not dataclasses.is_dataclass(kind) or kind in found.values():
            continue
        assert isinstance(kind, type)
        assert kind.__name__ not in found, f"two classes of a kernel are called {kind.__name__}"
        found[kind.__name__] = kind
        waiting.extend(get_type_hints(kind).values())
    return found
