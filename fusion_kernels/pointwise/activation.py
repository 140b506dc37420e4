"""Activation functions that have no decomposition, or a better one than torch's."""

from __future__ import annotations

import math
from typing import Any

from fusion_kernels.builder import Builder, Lowering, NotLowered, Value
from fusion_kernels.pointwise.comparison import select

_SQRT_HALF = math.sqrt(0.5)
_TWO_SQRT_2_OVER_PI = 2 * math.sqrt(2 / math.pi)


def _gelu(b: Builder, x: Value, approximate: str = "none") -> str:
    """0.5 x (1 + erf(x / sqrt 2)), or 0.5 x (1 + tanh u) with u = sqrt(2/pi) (x + 0.044715 x^3),
    which is x sigmoid(2 u): 1 + tanh u has no bit left at x = -5.
    """
    if approximate == "tanh":
        cubed = b.apply("mul", b.apply("mul", x, x), x)
        polynomial = b.apply("add", x, b.apply("mul", cubed, 0.044715))
        return b.apply(
            "mul", x, b.apply("sigmoid", b.apply("mul", polynomial, _TWO_SQRT_2_OVER_PI))
        )
    inner = b.apply("erf", b.apply("mul", x, _SQRT_HALF))
    return b.apply("mul", b.apply("mul", x, 0.5), b.apply("add", inner, 1.0))


def _silu(b: Builder, x: Value) -> str:
    return b.apply("mul", x, b.apply("sigmoid", x))


def _relu(b: Builder, x: Value) -> str:
    """A comparison with NaN is false, so NaN passes, as in eager."""
    zero = b.zero_like(x)
    return b.apply("where", b.apply("lt", x, zero), zero, x)


def _clamp(b: Builder, x: Value, low: Any = None, high: Any = None) -> str:
    """Bounds that are tensors pass a NaN on; with the lower above the upper, the upper wins."""
    for bound, comparison, extreme in ((low, "lt", "maximum"), (high, "gt", "minimum")):
        if isinstance(bound, str):
            x = b.apply(extreme, x, bound)
        elif bound is not None:
            if bound != bound:
                raise NotLowered("a bound that is NaN has no kernel expression")
            x = b.apply("where", b.apply(comparison, x, bound), bound, x)
    return str(x)


def _hardtanh(b: Builder, x: Value, low: Any = -1.0, high: Any = 1.0) -> str:
    """Of integers with whole bounds."""
    if b.dtype_of(x) != "float32":
        low, high = int(low), int(high)
    return _clamp(b, x, low, high)


def _leaky_relu(b: Builder, x: Value, slope: Any = 0.01) -> str:
    return b.apply("where", b.apply("lt", x, 0.0), b.apply("mul", x, slope), x)


def _rrelu(
    b: Builder, x: Value, low: Any = 1 / 8, high: Any = 1 / 3, *rest: Any, **named: Any
) -> str:
    """In inference the slope is the mean of its bounds."""
    if (rest and rest[0]) or named.get("training"):
        raise NotLowered("rrelu in training draws random slopes")
    return _leaky_relu(b, x, (low + high) / 2)


def _prelu(b: Builder, x: Value, weight: Value) -> str:
    """One slope for all, or one a channel."""
    return select(b, b.apply("gt", x, 0.0), x, b.apply("mul", x, weight))


def _celu(b: Builder, x: Value, alpha: Any = 1.0) -> str:
    below = b.apply("mul", b.apply("expm1", b.apply("div", x, alpha)), alpha)
    return select(b, b.apply("gt", x, 0.0), x, below)


def _mish(b: Builder, x: Value) -> str:
    """x tanh(log(1 + e^x)) = x n / (n + 2), n = e^x (e^x + 2): one exponential."""
    grown = b.apply("exp", b.apply("minimum", x, 20.0))
    n = b.apply("mul", grown, b.apply("add", grown, 2.0))
    share = b.apply("div", n, b.apply("add", n, 2.0))
    return b.apply("mul", x, share)


ACTIVATION: dict[str, Lowering] = {
    "aten.gelu.default": _gelu,
    "aten.silu.default": _silu,
    "aten.relu.default": _relu,
    "aten.relu6.default": lambda b, x: _hardtanh(b, x, 0.0, 6.0),
    "aten.hardtanh.default": _hardtanh,
    "aten.leaky_relu.default": _leaky_relu,
    "aten.rrelu.default": _rrelu,
    "aten.prelu.default": _prelu,
    "aten._prelu_kernel.default": _prelu,
    "aten.celu.default": _celu,
    "aten.mish.default": _mish,
    "aten.clamp.default": _clamp,
    "aten.clamp.Tensor": _clamp,
    "aten.clip.default": _clamp,
    "aten.clip.Tensor": _clamp,
    "aten.clamp_min.default": lambda b, x, low: _clamp(b, x, low),
    "aten.clamp_min.Tensor": lambda b, x, low: _clamp(b, x, low),
    "aten.clamp_max.default": lambda b, x, high: _clamp(b, x, None, high),
    "aten.clamp_max.Tensor": lambda b, x, high: _clamp(b, x, None, high),
}
