"""Sums, products, quotients, remainders and powers, of floating values, integers and booleans."""

from __future__ import annotations

from typing import Any

from fusion_kernels.builder import Builder, Lowering, NotLowered, Value
from fusion_kernels.ir import FLOATING
from fusion_kernels.pointwise.comparison import either, is_nan, same, select

_LARGEST_CHAIN = 64
"""The largest exponent that is worked out by multiplications."""


def _add(b: Builder, x: Value, y: Value, alpha: Any = 1) -> str:
    if b.result_dtype == "bool":
        return b.apply("or", x, y) if alpha else b.copy(x)
    return b.apply("add", x, _times(b, y, alpha))


def _sub(b: Builder, x: Value, y: Value, alpha: Any = 1) -> str:
    return b.apply("sub", x, _times(b, y, alpha))


def _rsub(b: Builder, x: Value, y: Value, alpha: Any = 1) -> str:
    return _sub(b, y, x, alpha)


def _times(b: Builder, y: Value, alpha: Any) -> Value:
    """In the result's dtype: -3 times a byte is negative where the sum is floating."""
    if alpha == 1:
        return y
    return b.apply("mul", b.as_result(y), alpha) if isinstance(y, str) else y * alpha


def _mul(b: Builder, x: Value, y: Value) -> str:
    return b.apply("and" if b.result_dtype == "bool" else "mul", x, y)


def _div(b: Builder, x: Value, y: Value, rounding_mode: str | None = None) -> str:
    if rounding_mode is None:
        return b.apply("div", x, y)
    return _floor_divide(b, x, y) if rounding_mode == "floor" else _trunc_divide(b, x, y)


def _floor_divide(b: Builder, x: Value, y: Value) -> str:
    """floor(x / y) of the exact quotient: what the remainder leaves over is a whole multiple."""
    if _integers(b, x, y):
        quotient = b.apply("idiv", x, _divisor(y))
        rest = b.apply("rem", x, y)
        below = b.apply("sub", quotient, 1)
        return select(b, _crosses(b, rest, y), below, quotient)
    return _whole_quotient(b, x, y, _float_remainder(b, x, y))


def _trunc_divide(b: Builder, x: Value, y: Value) -> str:
    if _integers(b, x, y):
        return b.apply("idiv", x, _divisor(y))
    return _whole_quotient(b, x, y, b.apply("fmod", x, y))


def _whole_quotient(b: Builder, x: Value, y: Value, rest: str) -> str:
    """(x - rest) / y is whole but for the rounding. By zero, and of or by an infinity, x / y tells
    the result.
    """
    plain = b.apply("div", x, y)
    whole = b.apply("round", b.apply("div", b.apply("sub", x, rest), y))
    finite = b.apply("lt", b.apply("abs", plain), float("inf"))
    return select(b, finite, whole, plain)


def _remainder(b: Builder, x: Value, y: Value) -> str:
    """The rest with the divisor's sign."""
    if not _integers(b, x, y):
        return _float_remainder(b, x, y)
    rest = b.apply("rem", x, _divisor(y))
    return select(b, _crosses(b, rest, y), b.apply("add", rest, y), rest)


def _float_remainder(b: Builder, x: Value, y: Value) -> str:
    rest = b.apply("fmod", x, y)
    return select(b, _crosses(b, rest, y), b.apply("add", rest, y), rest)


def _fmod(b: Builder, x: Value, y: Value) -> str:
    return b.apply("rem", x, _divisor(y)) if _integers(b, x, y) else b.apply("fmod", x, y)


def _crosses(b: Builder, rest: Value, divisor: Value) -> str:
    """Whether a rest is not zero and has not the divisor's sign."""
    apart = b.apply("ne", b.apply("lt", rest, 0), _below_zero(b, divisor))
    return b.apply("and", b.apply("ne", rest, 0), apart)


def _below_zero(b: Builder, value: Value) -> Value:
    return b.apply("lt", value, 0) if isinstance(value, str) else value < 0


def _divisor(value: Value) -> Value:
    if not isinstance(value, str) and value == 0:
        raise NotLowered("a division of integers by zero has no kernel expression")
    return value


def _integers(b: Builder, *values: Value) -> bool:
    return all(b.dtype_of(value) != "float32" for value in values)


def _pow(b: Builder, x: Value, exponent: Any) -> str:
    """Powers that eager computes by the same expressions; of an integer to a float in float32."""
    if b.result_dtype in FLOATING:
        x = b.floating(x)
    elif b.result_dtype == "bool":
        raise NotLowered("pow of booleans has no kernel expression")
    else:
        x = b.cast(x, b.result_dtype)
    if exponent == 0:
        return b.full_of(x, 1)
    if exponent in (0.5, -0.5):
        return b.apply("sqrt" if exponent > 0 else "rsqrt", x)
    if exponent == -1 and b.dtype_of(x) == "float32":
        return b.apply("div", 1.0, x)
    if float(exponent).is_integer() and 0 < exponent <= _LARGEST_CHAIN:
        return _product(b, x, int(exponent))
    if b.dtype_of(x) != "float32":
        raise NotLowered(f"pow of integers with exponent {exponent} has no kernel expression")
    return b.apply("power", x, float(exponent))


def _product(b: Builder, x: Value, count: int) -> str:
    """x * x * ... by repeated squaring, the odd factors from the right."""
    if count == 1:
        return b.copy(x)
    half = _product(b, x, count // 2)
    square = b.apply("mul", half, half)
    return b.apply("mul", square, x) if count % 2 else square


def _pow_tensor(b: Builder, x: Value, exponent: Value) -> str:
    if b.result_dtype in FLOATING:
        return b.apply("power", b.floating(x), b.floating(exponent))
    if b.result_dtype == "bool":
        raise NotLowered("pow of booleans has no kernel expression")
    base = b.cast(x, b.result_dtype) if isinstance(x, str) else x
    return b.apply("int_power", base, b.cast(exponent, b.result_dtype))


def _addcmul(b: Builder, x: Value, y: Value, z: Value, value: Any = 1) -> str:
    return b.apply("add", x, _times(b, b.apply("mul", y, z), value))


def _addcdiv(b: Builder, x: Value, y: Value, z: Value, value: Any = 1) -> str:
    return b.apply("add", x, _times(b, b.apply("div", y, z), value))


def _lerp(b: Builder, start: Value, end: Value, weight: Value) -> str:
    """start + weight (end - start), from the nearer end: what eager does for its accuracy."""
    step = b.apply("sub", end, start)
    if not isinstance(weight, str):
        if abs(weight) < 0.5:
            return b.apply("add", start, b.apply("mul", step, weight))
        return b.apply("sub", end, b.apply("mul", step, 1 - weight))
    early = b.apply("add", start, b.apply("mul", step, weight))
    late = b.apply("sub", end, b.apply("mul", step, b.apply("sub", 1.0, weight)))
    return select(b, b.apply("lt", b.apply("abs", weight), 0.5), early, late)


def _abs(b: Builder, x: Value) -> str:
    return b.copy(x) if b.dtype_of(x) in ("bool", "uint8") else b.apply("abs", x)


def _sign(b: Builder, x: Value) -> str:
    """-1, 0 or 1; NaN has no sign and gives 0."""
    if b.dtype_of(x) == "bool":
        return b.copy(x)
    above, zero = b.apply("gt", x, 0), b.zero_like(x)
    if b.dtype_of(x) == "uint8":
        return select(b, above, 1, zero)
    return select(b, above, 1, select(b, b.apply("lt", x, 0), -1, zero))


def _to_whole(op: str) -> Lowering:
    """Rounding to whole numbers, which integers already are."""

    def lower(b: Builder, x: Value) -> str:
        return b.apply(op, x) if b.dtype_of(x) == "float32" else b.copy(x)

    return lower


def _trunc(b: Builder, x: Value) -> str:
    if b.dtype_of(x) != "float32":
        return b.copy(x)
    return select(b, b.apply("lt", x, 0.0), b.apply("ceil", x), b.apply("floor", x))


def _frac(b: Builder, x: Value) -> str:
    return b.apply("sub", x, _trunc(b, x))


def _round_decimals(b: Builder, x: Value, decimals: int = 0) -> str:
    if decimals == 0 or b.dtype_of(x) != "float32":
        return _to_whole("round")(b, x)
    scale = 10.0 ** abs(decimals)
    there, back = ("mul", "div") if decimals > 0 else ("div", "mul")
    return b.apply(back, b.apply("round", b.apply(there, x, scale)), scale)


def _hypot(b: Builder, x: Value, y: Value) -> str:
    """The larger times sqrt(1 + ratio^2), which neither overflows nor loses small values."""
    x, y = b.apply("abs", b.floating(x)), b.apply("abs", b.floating(y))
    large, small = b.apply("maximum", x, y), b.apply("minimum", x, y)
    ratio = b.apply("div", small, large)
    scaled = b.apply("mul", large, b.apply("sqrt", b.apply("add", b.apply("mul", ratio, ratio), 1)))
    infinity = float("inf")
    endless = either(b, b.apply("eq", x, infinity), b.apply("eq", y, infinity))
    return select(b, endless, infinity, select(b, b.apply("eq", large, 0.0), 0.0, scaled))


def _copysign(b: Builder, x: Value, y: Value) -> str:
    size = b.apply("abs", b.floating(x))
    negative = b.apply("neg", size)
    if not isinstance(y, str):
        return negative if str(float(y)).startswith("-") else size
    return select(b, b.apply("signbit", b.floating(y)), negative, size)


def _maximum(b: Builder, x: Value, y: Value) -> str:
    return b.apply("or" if b.result_dtype == "bool" else "maximum", x, y)


def _minimum(b: Builder, x: Value, y: Value) -> str:
    return b.apply("and" if b.result_dtype == "bool" else "minimum", x, y)


def _fmax(b: Builder, x: Value, y: Value) -> str:
    return _without_nan(b, "ge", x, y)


def _fmin(b: Builder, x: Value, y: Value) -> str:
    return _without_nan(b, "le", x, y)


def _without_nan(b: Builder, comparison: str, x: Value, y: Value) -> str:
    """x where it compares so, or where y is NaN; a comparison with a NaN x is false."""
    if b.result_dtype == "bool":
        return b.apply("or" if comparison == "ge" else "and", x, y)
    return select(b, either(b, is_nan(b, y), b.apply(comparison, x, y)), x, y)


def _scaled(factor: float) -> Lowering:
    return lambda b, x: b.apply("mul", b.floating(x), factor)


def _log10(b: Builder, x: Value) -> str:
    return b.apply("mul", b.apply("log2", x), 0.30102999566398120)


def _tan(b: Builder, x: Value) -> str:
    return b.apply("div", b.apply("sin", x), b.apply("cos", x))


def _square(b: Builder, x: Value) -> str:
    x = b.as_result(x)
    return b.apply("mul", x, x)


def _greatest_divisor(b: Builder, x: Value, y: Value) -> str:
    return b.apply("gcd", x, y)


def _least_multiple(b: Builder, x: Value, y: Value) -> str:
    """|x / gcd(x, y) * y|, and 0 where both are 0."""
    divisor = b.apply("gcd", x, y)
    by = b.apply("maximum", divisor, 1) if isinstance(divisor, str) else divisor
    return _abs(b, b.apply("mul", b.apply("idiv", x, by), y))


_FUNCTIONS = (
    *("exp", "exp2", "expm1", "log", "log1p", "log2", "sqrt", "rsqrt", "erf", "erfc", "sin", "cos"),
    *("sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "sigmoid"),
)

ARITHMETIC: dict[str, Lowering] = {
    **{f"aten.{name}.default": same(name) for name in _FUNCTIONS},
    "aten.add.Tensor": _add,
    "aten.add.Scalar": _add,
    "aten.sub.Tensor": _sub,
    "aten.sub.Scalar": _sub,
    "aten.rsub.Tensor": _rsub,
    "aten.rsub.Scalar": _rsub,
    "aten.mul.Tensor": _mul,
    "aten.mul.Scalar": _mul,
    "aten.div.Tensor": _div,
    "aten.div.Scalar": _div,
    "aten.div.Tensor_mode": _div,
    "aten.div.Scalar_mode": _div,
    "aten.true_divide.Tensor": _div,
    "aten.floor_divide.default": _floor_divide,
    "aten.floor_divide.Scalar": _floor_divide,
    "aten.remainder.Tensor": _remainder,
    "aten.remainder.Scalar": _remainder,
    "aten.remainder.Scalar_Tensor": _remainder,
    "aten.fmod.Tensor": _fmod,
    "aten.fmod.Scalar": _fmod,
    "aten.pow.Tensor_Scalar": _pow,
    "aten.pow.Tensor_Tensor": _pow_tensor,
    "aten.pow.Scalar": _pow_tensor,
    "aten.square.default": _square,
    "aten.reciprocal.default": lambda b, x: b.apply("div", 1.0, x),
    "aten.addcmul.default": _addcmul,
    "aten.addcdiv.default": _addcdiv,
    "aten.lerp.Scalar": _lerp,
    "aten.lerp.Tensor": _lerp,
    "aten.neg.default": same("neg"),
    "aten.abs.default": _abs,
    "aten.sign.default": _sign,
    "aten.sgn.default": _sign,
    "aten.log10.default": _log10,
    "aten.tan.default": _tan,
    "aten.floor.default": _to_whole("floor"),
    "aten.ceil.default": _to_whole("ceil"),
    "aten.round.default": _to_whole("round"),
    "aten.round.decimals": _round_decimals,
    "aten.trunc.default": _trunc,
    "aten.frac.default": _frac,
    "aten.hypot.default": _hypot,
    "aten.atan2.default": same("atan2"),
    "aten.copysign.Tensor": _copysign,
    "aten.copysign.Scalar": _copysign,
    "aten.maximum.default": _maximum,
    "aten.minimum.default": _minimum,
    "aten.max.other": _maximum,
    "aten.min.other": _minimum,
    "aten.fmax.default": _fmax,
    "aten.fmin.default": _fmin,
    "aten.deg2rad.default": _scaled(0.017453292519943295),
    "aten.rad2deg.default": _scaled(57.29577951308232),
    "aten.gcd.default": _greatest_divisor,
    "aten.lcm.default": _least_multiple,
}
