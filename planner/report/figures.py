"""How figures are written for people, the same in every rendered format.

An unknown figure is "?", never 0. Three significant digits; units beside the number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from planner.report.model import Kind

UNKNOWN = "?"

_SHORT_DTYPES = {"bfloat16": "bf16", "bool": "b8"}
_DTYPE = re.compile(r"(?P<kind>float|uint|int|complex)(?P<bits>\d+.*)")
_TIME_STEPS = ((1e6, "s"), (1e3, "ms"), (1.0, "us"))
_SIZE_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def time(us: float | None, kind: Kind = "measured") -> str:
    """Microseconds as `412 us`, `1.24 ms`, `3.1 s`; a prediction is marked `~412 us`."""
    if us is None:
        return UNKNOWN
    mark = "~" if kind == "predicted" else ""
    # 999.6 us would be written 1000 us: the rounded figure decides the unit
    scale, unit = next(
        (step for step in _TIME_STEPS if abs(us) >= step[0] * 0.9995), _TIME_STEPS[-1]
    )
    return f"{mark}{_digits(us / scale)} {unit}"


def percent(fraction: float | None) -> str:
    """A fraction of 1 as `97.2 %`. What rounds to 100 but is not all is written `99.9 %`, what
    rounds to 0 but is not none `<0.1 %`.
    """
    if fraction is None:
        return UNKNOWN
    hundred = fraction * 100
    if 0 < hundred < 0.05:
        return "<0.1 %"
    if 99.95 <= hundred < 100:
        return "99.9 %"
    return f"{hundred:.0f} %" if hundred in (0, 100) else f"{hundred:.1f} %"


def count(number: float | None, unit: str = "") -> str:
    """`109 M`, `2.4 GFLOP` for large numbers, plain below a thousand."""
    if number is None:
        return UNKNOWN
    for scale, prefix in _SIZE_STEPS:
        if abs(number) >= scale * 0.9995:
            return f"{_digits(number / scale)} {prefix}{unit}"
    return f"{number:g} {unit}".strip()


def ratio(value: float | None) -> str:
    """`1.43x`."""
    return UNKNOWN if value is None else f"{_digits(value)}x"


def error(value: float | None) -> str:
    """A numerics error or limit: `3.1e-07`."""
    return UNKNOWN if value is None else f"{value:.1e}"


def shapes(every: Iterable[tuple[int, ...]], dtypes: Iterable[str], most: int = 3) -> str:
    """`f32 128x768, 768x3072 +1`; at most `most` shapes are written, `+1` counts the
    rest. Several dtypes are all named.
    """
    written = ["x".join(map(str, shape)) or "scalar" for shape in every]
    if not written:
        return "-"
    more = [f"+{len(written) - most}"] if len(written) > most else []
    names = "/".join(dict.fromkeys(map(short_dtype, dtypes)))
    return f"{names} {', '.join(written[:most])} {''.join(more)}".strip()


def place(source: str, parts: int = 2) -> str:
    """A source line with the last `parts` of its path: `bert/modeling_bert.py:378`."""
    return "/".join(source.split("/")[-parts:])


def short_dtype(name: str) -> str:
    """`float32` as `f32`, `int64` as `i64`."""
    found = _DTYPE.fullmatch(name)
    return _SHORT_DTYPES.get(name, f"{found['kind'][0]}{found['bits']}" if found else name)


def _digits(value: float) -> str:
    """Three significant digits without an exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    # the first digit of the rounded value: 9.996 is written 10.0
    exponent = int(f"{value:.2e}".partition("e")[2])
    return f"{value:.{min(3, max(0, 2 - exponent))}f}"
