"""The statements of a region as lines of the kernel, one comment a graph node."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from fusion_kernels.emit.expressions import (
    PRODUCT,
    QUOTIENT,
    TL_DTYPE,
    Text,
    call,
    triton_text,
)
from fusion_kernels.emit.wrap import assigned, fits, summed
from fusion_kernels.ir import INTEGER_LIMITS, ROW_OPS, Operand, Statement

_LONGEST_INLINED = 60
_OWN_LINES = (*ROW_OPS, "gather")
"""Operations that are lines of their own and read names."""
_REDUCERS = {"row_sum": "tl.sum", "row_prod": "tl.reduce", "row_max": "tl.max", "row_min": "tl.min"}


def body_lines(
    statements: Sequence[Statement],
    kept: Set[str],
    looked_up: Callable[[Statement, str], list[str]],
    tall: bool = False,
    indent: str = "    ",
) -> list[str]:
    """What one statement alone reads is written into it, as long as the line stays whole; values
    in `kept` are read by others.

    `looked_up` writes the lines of a lookup at an indent. `tall` tells that a program holds
    several rows: values are `[ROWS, BLOCK_SIZE]`, else `[BLOCK_SIZE]`.
    """
    lines: list[str] = []
    origin = None
    inlined: dict[str, Text] = {}
    once = _read_once(statements, kept)
    for item in statements:
        if item.op not in _OWN_LINES and item.name in once:
            text = triton_text(item, inlined)
            if len(text.text) <= _LONGEST_INLINED:
                inlined[item.name] = text
                continue
        if item.origin != origin:
            origin = item.origin
            lines.append(f"{indent}# {origin}")
        if item.op == "gather":
            lines += looked_up(item, indent)
        elif item.op in ROW_OPS:
            lines += _row_operation(item, tall)
        else:
            lines += _pointwise(item, inlined, indent)
    return lines


def accumulator(item: Statement) -> Text:
    """What a reduction over several blocks starts from: `[BLOCK_SIZE]` of what does not count."""
    neutral = _neutral(item.op, item.dtype)
    return call("tl.full", "(BLOCK_SIZE,)", neutral, TL_DTYPE[item.dtype])


def accumulated(item: Statement, total: str) -> Text:
    """The accumulator with one more block."""
    value = call("tl.where", "mask", str(item.args[0]), _neutral(item.op, item.dtype))
    sign = {"row_sum": "+", "row_mean": "+", "row_prod": "*"}.get(item.op)
    if sign is None:
        return call("tl.maximum" if item.op == "row_max" else "tl.minimum", total, value.text)
    level = QUOTIENT if sign == "*" else QUOTIENT - 1
    return Text(f"{total} {sign} {value.text}", level, f"{total} {sign} {value.head}", value.items)


def concluded(item: Statement, total: str) -> Text:
    """The row's value from the accumulator."""
    if item.op == "row_mean":
        return _rounded_mean(_sum(total, tall=False))
    return _reduced(_REDUCERS[item.op], total, tall=False)


def _pointwise(item: Statement, inlined: dict[str, Text], indent: str) -> list[str]:
    text = triton_text(item, inlined)
    if fits(item.name, text, indent):
        return assigned(item.name, text, indent)
    lines = []
    for arg in item.args:
        if isinstance(arg, str) and arg in inlined:
            lines += assigned(arg, inlined.pop(arg), indent)
    return [*lines, *assigned(item.name, triton_text(item, inlined), indent)]


def _read_once(statements: Sequence[Statement], kept: Set[str]) -> set[str]:
    """Pointwise values that exactly one pointwise statement of the same graph node reads, once."""
    readers: dict[str, list[str]] = {}
    for item in statements:
        origin = "" if item.op in _OWN_LINES else item.origin
        for arg in item.args:
            if isinstance(arg, str):
                readers.setdefault(arg, []).append(origin)
    return {
        item.name
        for item in statements
        if item.name not in kept and readers.get(item.name) == [item.origin]
    }


def _row_operation(item: Statement, tall: bool) -> list[str]:
    """Lanes past the row's end hold whatever the body made of zeros; they never count."""
    if item.op == "layer_norm":
        return _layer_norm(item, tall)
    kept = call("tl.where", "mask", str(item.args[0]), _neutral(item.op, item.dtype)).text
    if item.op == "row_mean":
        return assigned(item.name, _rounded_mean(_sum(kept, tall)))
    return assigned(item.name, _reduced(_REDUCERS[item.op], kept, tall))


def _neutral(op: str, dtype: str) -> str:
    """What a lane past the row's end holds, so that it does not count."""
    if op in ("row_sum", "row_mean", "row_prod"):
        number = int(op == "row_prod")
        return f"{number}.0" if dtype == "float32" else f"{number}"
    if dtype == "float32":
        return 'float("-inf")' if op == "row_max" else 'float("inf")'
    low, high = INTEGER_LIMITS[dtype]
    return str(low if op == "row_max" else high)


def _layer_norm(item: Statement, tall: bool) -> list[str]:
    """The mean is taken twice, the second time of what the first left over: a large mean or a
    constant row then loses nothing to the rounding of the sum.
    """
    x, weight, bias, eps = item.args
    prefix = "" if item.name == "layer_norm" else f"{item.name}_"
    mean, centered, variance = (f"{prefix}{part}" for part in ("mean", "centered", "variance"))
    left_over = _mean(_sum(centered, tall)).text
    return [
        *assigned(mean, _mean(_sum(f"tl.where(mask, {x}, 0.0)", tall))),
        *assigned(centered, call("tl.where", "mask", f"{x} - {mean}", "0.0")),
        *assigned(centered, call("tl.where", "mask", f"{centered} - {left_over}", "0.0")),
        *assigned(variance, _mean(_sum(f"{centered} * {centered}", tall))),
        *summed(item.name, _affine(f"{centered} * tl.rsqrt({variance} + {eps})", weight, bias)),
    ]


def _affine(normalized: str, weight: Operand, bias: Operand) -> list[str]:
    scaled = normalized if weight is None else f"{normalized} * {weight}"
    return [scaled] if bias is None else [scaled, str(bias)]


def _sum(value: str, tall: bool) -> Text:
    return _reduced("tl.sum", value, tall)


def _reduced(reducer: str, value: str, tall: bool) -> Text:
    combining = (f"combine_fn={PRODUCT}",) if reducer == "tl.reduce" else ()
    along = ("axis=1", *combining, "keep_dims=True") if tall else ("axis=0", *combining)
    return call(reducer, value, *along)


def _mean(total: Text) -> Text:
    """Of a layer_norm, which takes the mean of what the first one left over as well."""
    return Text(f"{total.text} / n_cols", QUOTIENT)


def _rounded_mean(total: Text) -> Text:
    """A row of one element makes its length a constant of the compiler, which has no `.to`."""
    return call("tl.div_rn", total.text, "n_cols * 1.0")
