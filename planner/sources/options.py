"""The choices that come with a MODEL text, as plain data, and the reading of their short forms.

Nothing here needs torch, so that the command line can read its arguments without it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from planner.errors import FuseplanError
from planner.graph.op_graph import BYTES_PER_ELEMENT

Mask = Literal["none", "full", "padded"]

DTYPES = ("float32", "bfloat16", "float16")
MASKS: tuple[Mask, ...] = ("none", "full", "padded")

_INPUT = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<dtype>\w+)\[(?P<shape>[\d,\s]*)\]")
_SETTING = re.compile(r"(?P<key>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)=(?P<value>.*)", re.DOTALL)


_OPEN = re.compile(r"(?P<name>[A-Za-z_]\w*)(\.(?P<dim>\d+))?(=(?P<least>\d*):(?P<most>\d*))?")


class BadOption(FuseplanError):
    """An option's text does not have the form it should."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input to make: its forward keyword, dtype (torch's name) and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OpenSize:
    """A size that stays open: dimension `dim` of one input, or, without it, "batch" or "seq" of
    all. `most` None is no upper end.
    """

    name: str
    dim: int | None
    least: int
    most: int | None

    def __str__(self) -> str:
        return self.name if self.dim is None else f"{self.name}.{self.dim}"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """How to build a MODEL and its inputs. None leaves the choice to the source.

    `settings` are `--set` pairs; a dotted key reaches into a nested configuration. `dtype` None
    keeps the dtypes that the builder or checkpoint has.
    """

    device: str | None = None
    dtype: str | None = None
    seed: int = 0
    batch: int | None = None
    seq: int | None = None
    image: int | None = None
    inputs: tuple[InputSpec, ...] = ()
    inputs_file: Path | None = None
    mask: Mask = "none"
    config: Path | None = None
    settings: tuple[tuple[str, Any], ...] = ()


def parse_input(text: str) -> InputSpec:
    """`name=int64[8,128]` as an `InputSpec`; `name=float32[]` is a scalar.

    Raises `BadOption` when the form or the dtype is wrong.
    """
    found = _INPUT.fullmatch(text.strip())
    if found is None:
        raise BadOption(f"'{text}': write it as name=dtype[sizes], as in ids=int64[8,128].")
    if found["dtype"] not in BYTES_PER_ELEMENT:
        raise BadOption(
            f"'{text}': '{found['dtype']}' is not a dtype; "
            f"use one of {', '.join(BYTES_PER_ELEMENT)}."
        )
    sizes = [size.strip() for size in found["shape"].split(",")]
    if sizes == [""]:
        return InputSpec(found["name"], found["dtype"], ())
    if "" in sizes:
        raise BadOption(f"'{text}': a size is missing between the commas.")
    return InputSpec(found["name"], found["dtype"], tuple(map(int, sizes)))


def parse_open(text: str) -> OpenSize:
    """`batch=0:64`, `seq`, `pixel_values.2=32:224` as an `OpenSize`; either end may be left out.

    Raises `BadOption` for another form, a name that stands for no dimension, or a range without
    two sizes in it.
    """
    found = _OPEN.fullmatch(text.strip())
    if found is None:
        raise BadOption(f"'{text}': write it as name=least:most, as in batch=0:64 or ids.1=1:512.")
    dim = None if found["dim"] is None else int(found["dim"])
    if dim is None and found["name"] not in ("batch", "seq"):
        raise BadOption(
            f"'{text}': say which dimension of {found['name']}, as in {found['name']}.0; only "
            "batch and seq stand for one by themselves."
        )
    least, most = int(found["least"] or 0), int(found["most"]) if found["most"] else None
    if most is not None and most <= max(least, 1):
        raise BadOption(f"'{text}': the range should go up to 2 at least, and from less to more.")
    return OpenSize(found["name"], dim, least, most)


def parse_setting(text: str) -> tuple[str, Any]:
    """`key=value` with the value read as JSON where it is JSON (2, true, [1,2]), else as text.

    Raises `BadOption` without an `=` or with a key that is not a dotted name.
    """
    found = _SETTING.fullmatch(text.strip())
    if found is None:
        raise BadOption(f"'{text}': write it as key=value, as in num_hidden_layers=2.")
    try:
        return found["key"], json.loads(found["value"])
    except ValueError:
        return found["key"], found["value"]
