"""ATen operators as region statements: the table of what a region may hold.

Each entry takes the builder and the operator's arguments (names of values, or literals) and
returns the name of the result. Absent from the table means: not fusable, and the planner says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from fusion_kernels.builder import Builder, NotLowered
from fusion_kernels.ir import FLOATING
from fusion_kernels.reductions import REDUCTIONS

Lowering = Callable[..., str]
Value = Any  # the name of a value in the region, or a Python literal

_SQRT_HALF = math.sqrt(0.5)
_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)


def _add(b: Builder, x: Value, y: Value, alpha: Any = 1) -> str:
    return b.apply("add", x, _times(b, y, alpha))


def _sub(b: Builder, x: Value, y: Value, alpha: Any = 1) -> str:
    return b.apply("sub", x, _times(b, y, alpha))


def _rsub(b: Builder, x: Value, y: Value, alpha: Any = 1) -> str:
    return _sub(b, y, x, alpha)


def _times(b: Builder, y: Value, alpha: Any) -> Value:
    if alpha == 1:
        return y
    return b.apply("mul", y, alpha) if isinstance(y, str) else y * alpha


def _pow(b: Builder, x: Value, exponent: Any) -> str:
    """Powers that eager computes by the same expressions; of an integer to a float in float32."""
    if b.result_dtype in FLOATING:
        x = b.floating(x)
    powers: dict[Any, Callable[[], str]] = {
        0.5: lambda: b.apply("sqrt", x),
        -0.5: lambda: b.apply("rsqrt", x),
        -1: lambda: b.apply("div", 1.0, x),
        1: lambda: b.copy(x),
        2: lambda: b.apply("mul", x, x),
        3: lambda: b.apply("mul", b.apply("mul", x, x), x),
    }
    if exponent not in powers:
        raise NotLowered(f"pow with exponent {exponent} has no kernel expression")
    return powers[exponent]()


def _gelu(b: Builder, x: Value, approximate: str = "none") -> str:
    """0.5 x (1 + erf(x / sqrt 2)), or 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    if approximate == "none":
        inner = b.apply("erf", b.apply("mul", x, _SQRT_HALF))
    else:
        cubed = b.apply("mul", b.apply("mul", x, x), x)
        polynomial = b.apply("add", x, b.apply("mul", cubed, 0.044715))
        inner = b.apply("tanh", b.apply("mul", polynomial, _SQRT_2_OVER_PI))
    return b.apply("mul", b.apply("mul", x, 0.5), b.apply("add", inner, 1.0))


def _silu(b: Builder, x: Value) -> str:
    return b.apply("mul", x, b.apply("sigmoid", x))


def _relu(b: Builder, x: Value) -> str:
    """A comparison with NaN is false, so NaN passes, as in eager."""
    zero = b.zero_like(x)
    return b.apply("where", b.apply("lt", x, zero), zero, x)


def _clamp(b: Builder, x: Value, low: Any = None, high: Any = None) -> str:
    for bound, comparison in ((low, "lt"), (high, "gt")):
        if bound is not None:
            if bound != bound:
                raise NotLowered("a bound that is NaN has no kernel expression")
            x = b.apply("where", b.apply(comparison, x, bound), bound, x)
    return str(x)


def _hardtanh(b: Builder, x: Value, low: Any = -1.0, high: Any = 1.0) -> str:
    if b.dtype_of(x) != "float32":
        raise NotLowered("hardtanh of integers has no kernel expression")
    return _clamp(b, x, low, high)


def _leaky_relu(b: Builder, x: Value, slope: Any = 0.01) -> str:
    return b.apply("where", b.apply("lt", x, 0.0), b.apply("mul", x, slope), x)


def _where(b: Builder, condition: Value, x: Value, y: Value) -> str:
    return b.apply("where", condition, x, y)


def _masked_fill(b: Builder, x: Value, mask: Value, value: Any) -> str:
    """The value takes the tensor's dtype, never the other way round."""
    dtype = b.dtype_of(x)
    if isinstance(value, str):
        filling: Value = b.cast(value, dtype)
    else:
        filling = {"float32": float, "bool": bool}.get(dtype, int)(value)
    return b.apply("where", mask, filling, x)


def _cast(b: Builder, x: Value, dtype: str | None = None, *_: object, **kwargs: object) -> str:
    return b.cast(x, str(dtype or kwargs.get("dtype") or b.result_dtype))


def _copy(b: Builder, x: Value, *_: object, **__: object) -> str:
    return b.copy(x)


def _same(op: str) -> Lowering:
    """An operation that the region knows by itself."""

    def lower(b: Builder, *args: Value) -> str:
        return b.apply(op, *args)

    return lower


def _to_whole(op: str) -> Lowering:
    """Rounding to whole numbers, which integers already are."""

    def lower(b: Builder, x: Value) -> str:
        return b.apply(op, x) if b.dtype_of(x) == "float32" else b.copy(x)

    return lower


def _logical(op: str) -> Lowering:
    def lower(b: Builder, *args: Value) -> str:
        if any(b.dtype_of(arg) != "bool" for arg in args):
            raise NotLowered(f"{op} of integers has no kernel expression")
        return b.apply(op, *args)

    return lower


POINTWISE: dict[str, Lowering] = {
    "aten.add.Tensor": _add,
    "aten.add.Scalar": _add,
    "aten.sub.Tensor": _sub,
    "aten.sub.Scalar": _sub,
    "aten.rsub.Tensor": _rsub,
    "aten.rsub.Scalar": _rsub,
    "aten.mul.Tensor": _same("mul"),
    "aten.mul.Scalar": _same("mul"),
    "aten.div.Tensor": _same("div"),
    "aten.div.Scalar": _same("div"),
    "aten.pow.Tensor_Scalar": _pow,
    "aten.square.default": lambda b, x: b.apply("mul", x, x),
    "aten.reciprocal.default": lambda b, x: b.apply("div", 1.0, x),
    "aten.neg.default": _same("neg"),
    "aten.abs.default": _same("abs"),
    "aten.exp.default": _same("exp"),
    "aten.log.default": _same("log"),
    "aten.sqrt.default": _same("sqrt"),
    "aten.rsqrt.default": _same("rsqrt"),
    "aten.erf.default": _same("erf"),
    "aten.tanh.default": _same("tanh"),
    "aten.sigmoid.default": _same("sigmoid"),
    "aten.sin.default": _same("sin"),
    "aten.cos.default": _same("cos"),
    "aten.floor.default": _to_whole("floor"),
    "aten.ceil.default": _to_whole("ceil"),
    "aten.maximum.default": _same("maximum"),
    "aten.minimum.default": _same("minimum"),
    "aten.gelu.default": _gelu,
    "aten.silu.default": _silu,
    "aten.relu.default": _relu,
    "aten.hardtanh.default": _hardtanh,
    "aten.leaky_relu.default": _leaky_relu,
    "aten.clamp.default": _clamp,
    "aten.clamp_min.default": lambda b, x, low: _clamp(b, x, low),
    "aten.clamp_max.default": lambda b, x, high: _clamp(b, x, None, high),
    "aten.where.self": _where,
    "aten.where.Scalar": _where,
    "aten.where.ScalarOther": _where,
    "aten.where.ScalarSelf": _where,
    "aten.masked_fill.Scalar": _masked_fill,
    "aten.masked_fill.Tensor": _masked_fill,
    "aten.eq.Tensor": _same("eq"),
    "aten.eq.Scalar": _same("eq"),
    "aten.ne.Tensor": _same("ne"),
    "aten.ne.Scalar": _same("ne"),
    "aten.lt.Tensor": _same("lt"),
    "aten.lt.Scalar": _same("lt"),
    "aten.le.Tensor": _same("le"),
    "aten.le.Scalar": _same("le"),
    "aten.gt.Tensor": _same("gt"),
    "aten.gt.Scalar": _same("gt"),
    "aten.ge.Tensor": _same("ge"),
    "aten.ge.Scalar": _same("ge"),
    "aten.logical_and.default": _logical("and"),
    "aten.logical_or.default": _logical("or"),
    "aten.logical_not.default": _logical("not"),
    "aten.bitwise_and.Tensor": _logical("and"),
    "aten.bitwise_or.Tensor": _logical("or"),
    "aten.bitwise_not.default": _logical("not"),
    "aten.__and__.Tensor": _logical("and"),
    "aten.__or__.Tensor": _logical("or"),
    "aten._to_copy.default": _cast,
    "aten.to.dtype": _cast,
    "prims.convert_element_type.default": _cast,
    "aten.clone.default": _copy,
}

LOWERINGS: dict[str, Lowering] = {**POINTWISE, **REDUCTIONS}
