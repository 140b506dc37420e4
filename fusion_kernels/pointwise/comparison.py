"""Comparisons, logic on any dtype, bits, and what chooses between values."""

from __future__ import annotations

from typing import Any

from fusion_kernels.builder import INTEGER_BITS, Builder, Lowering, NotLowered, Value
from fusion_kernels.ir import FLOATING


def same(op: str) -> Lowering:
    """An operation that the region knows by itself."""

    def lower(b: Builder, *args: Value) -> str:
        return b.apply(op, *args)

    return lower


def select(b: Builder, condition: Value, x: Value, y: Value) -> str:
    """x where the condition holds, else y."""
    return b.apply("where", condition, x, y)


def either(b: Builder, x: Value, y: Value) -> str:
    """x or y of two booleans; a literal decides at once."""
    if isinstance(x, str) and isinstance(y, str):
        return b.apply("or", x, y)
    named, known = (x, y) if isinstance(x, str) else (y, x)
    return b.full_of(named, True) if known else str(named)


def is_nan(b: Builder, x: Value) -> Value:
    """Whether x is NaN; false where it is no floating value."""
    if not isinstance(x, str):
        return x != x
    return b.apply("ne", x, x) if b.dtype_of(x) == "float32" else False


def truth(b: Builder, x: Value) -> Value:
    """x as a boolean: whether it is not zero."""
    if not isinstance(x, str):
        return bool(x)
    return x if b.dtype_of(x) == "bool" else b.apply("ne", x, b.zero_like(x))


def _logical(op: str) -> Lowering:
    def lower(b: Builder, *args: Value) -> str:
        return b.apply(op, *(truth(b, arg) for arg in args))

    return lower


def _bitwise(op: str) -> Lowering:
    def lower(b: Builder, *args: Value) -> str:
        if any(b.dtype_of(arg) == "float32" for arg in args):
            raise NotLowered(f"{op} of floating values has no kernel expression")
        return b.apply(op, *args)

    return lower


def _shift_left(b: Builder, x: Value, by: Value) -> str:
    """Past the width, and by a negative number, nothing is left."""
    by, outside = _shift(b, by)
    return select(b, outside, 0, b.apply("shl", x, by))


def _shift_right(b: Builder, x: Value, by: Value) -> str:
    """Past the width, and by a negative number, the sign alone is left."""
    by, outside = _shift(b, by)
    most = INTEGER_BITS[b.result_dtype] - (b.result_dtype != "uint8")
    if b.result_dtype == "uint8":
        return select(b, outside, 0, b.apply("shr", x, by))
    return select(b, outside, b.apply("shr", x, most), b.apply("shr", x, by))


def _shift(b: Builder, by: Value) -> tuple[Value, Value]:
    """A distance that hardware takes, and where the asked one lies outside of it."""
    if b.result_dtype not in INTEGER_BITS:
        raise NotLowered(f"a shift of {b.result_dtype} has no kernel expression")
    bits = INTEGER_BITS[b.result_dtype]
    if not isinstance(by, str):
        raise NotLowered("a shift by a number alone has no kernel expression")
    by = b.cast(by, b.result_dtype)
    outside = b.apply("ge", by, bits)
    if b.result_dtype != "uint8":
        outside = b.apply("or", outside, b.apply("lt", by, 0))
    return select(b, outside, 0, by), outside


def _shift_by_number(op: Lowering) -> Lowering:
    def lower(b: Builder, x: Value, by: Any) -> str:
        if not isinstance(by, str):
            by = b.full_of(x, by)
        elif not isinstance(x, str):
            x = b.full_of(by, x)
        return op(b, x, by)

    return lower


def _masked_fill(b: Builder, x: Value, mask: Value, value: Any) -> str:
    """The value takes the tensor's dtype, never the other way round."""
    dtype = b.dtype_of(x)
    if isinstance(value, str):
        filling: Value = b.cast(value, dtype)
    else:
        filling = {"float32": float, "bool": bool}.get(dtype, int)(value)
    return b.apply("where", mask, filling, x)


def _where(b: Builder, condition: Value, x: Value, y: Value) -> str:
    return b.apply("where", truth(b, condition), x, y)


def _is_infinite(b: Builder, x: Value) -> str:
    return _if_floating(b, x, lambda: b.apply("eq", b.apply("abs", x), float("inf")), False)


def _is_finite(b: Builder, x: Value) -> str:
    return _if_floating(b, x, lambda: b.apply("lt", b.apply("abs", x), float("inf")), True)


def _is_nan(b: Builder, x: Value) -> str:
    return _if_floating(b, x, lambda: b.apply("ne", x, x), False)


def _is(infinity: float) -> Lowering:
    def lower(b: Builder, x: Value) -> str:
        return _if_floating(b, x, lambda: b.apply("eq", x, infinity), False)

    return lower


def _if_floating(b: Builder, x: Value, test: Any, otherwise: bool) -> str:
    return str(test()) if b.dtype_of(x) == "float32" else b.full_of(x, otherwise, "bool")


def _signbit(b: Builder, x: Value) -> str:
    if b.dtype_of(x) == "float32":
        return b.apply("signbit", x)
    if b.dtype_of(x) in ("bool", "uint8"):
        return b.full_of(x, False, "bool")
    return b.apply("lt", x, 0)


def _isclose(
    b: Builder, x: Value, y: Value, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> str:
    """x = y, or |x - y| <= atol + |rtol y| and finite."""
    close = b.apply("eq", x, y)
    if equal_nan and b.dtype_of(x) == "float32":
        close = b.apply("or", close, b.apply("and", b.apply("ne", x, x), b.apply("ne", y, y)))
    if not rtol and not atol:
        return close
    if b.dtype_of(x) == "bool":
        x, y = b.cast(x, "int64"), b.cast(y, "int64")
    distance = b.floating(b.apply("abs", b.apply("sub", x, y)))
    allowed = b.apply("add", b.apply("abs", b.apply("mul", b.floating(y), rtol)), atol)
    finite = b.apply("lt", distance, float("inf"))
    near = b.apply("and", finite, b.apply("le", distance, allowed))
    return b.apply("or", close, near)


def _heaviside(b: Builder, x: Value, at_zero: Value) -> str:
    zero = b.zero_like(x)
    above = b.cast(b.apply("gt", x, zero), b.result_dtype)
    return select(b, b.apply("eq", x, zero), at_zero, above)


def _nan_to_num(
    b: Builder, x: Value, nan: Any = None, posinf: Any = None, neginf: Any = None
) -> str:
    if b.dtype_of(x) != "float32":
        return b.copy(x)
    largest = _LARGEST[b.result_dtype]
    above, below = (b.apply("eq", x, sign * float("inf")) for sign in (1, -1))
    result = select(b, above, largest if posinf is None else float(posinf), x)
    result = select(b, below, -largest if neginf is None else float(neginf), result)
    return select(b, b.apply("ne", x, x), float(nan or 0.0), result)


_LARGEST = {
    "float16": 65504.0,
    "bfloat16": (2 - 2**-7) * 2.0**127,
    "float32": (2 - 2**-23) * 2.0**127,
}
assert set(_LARGEST) == set(FLOATING)

COMPARISON: dict[str, Lowering] = {
    **{
        f"aten.{name}.{form}": same(name)
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
        for form in ("Tensor", "Scalar")
    },
    "aten.logical_and.default": _logical("and"),
    "aten.logical_or.default": _logical("or"),
    "aten.logical_xor.default": _logical("xor"),
    "aten.logical_not.default": _logical("not"),
    **{
        f"aten.bitwise_{op}.{form}": _bitwise(op)
        for op in ("and", "or", "xor")
        for form in ("Tensor", "Scalar", "Scalar_Tensor")
    },
    **{
        f"aten.__{op}__.{form}": _bitwise(op)
        for op in ("and", "or", "xor")
        for form in ("Tensor", "Scalar")
    },
    "aten.bitwise_not.default": _bitwise("not"),
    "prims.bitwise_and.default": _bitwise("and"),
    **{
        f"aten.bitwise_{name}_shift.{form}": _shift_by_number(op)
        for name, op in (("left", _shift_left), ("right", _shift_right))
        for form in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")
    },
    **{
        f"aten.__{name}shift__.{form}": _shift_by_number(op)
        for name, op in (("l", _shift_left), ("r", _shift_right))
        for form in ("Tensor", "Scalar")
    },
    "aten.where.self": _where,
    "aten.where.Scalar": _where,
    "aten.where.ScalarOther": _where,
    "aten.where.ScalarSelf": _where,
    "aten.masked_fill.Scalar": _masked_fill,
    "aten.masked_fill.Tensor": _masked_fill,
    "aten.isnan.default": _is_nan,
    "aten.isinf.default": _is_infinite,
    "aten.isfinite.default": _is_finite,
    "aten.isposinf.default": _is(float("inf")),
    "aten.isneginf.default": _is(-float("inf")),
    "aten.isreal.default": lambda b, x: b.full_of(x, True, "bool"),
    "aten.signbit.default": _signbit,
    "aten.isclose.default": _isclose,
    "aten.heaviside.default": _heaviside,
    "aten.nan_to_num.default": _nan_to_num,
}
