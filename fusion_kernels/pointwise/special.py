"""Special functions of torch.special."""

from __future__ import annotations

import math

from fusion_kernels.builder import Builder, Lowering, Value
from fusion_kernels.pointwise.comparison import same, select


def _angle(b: Builder, x: Value) -> str:
    """0, or pi below zero; NaN stays."""
    x = b.floating(x)
    below = select(b, b.apply("lt", x, 0.0), math.pi, 0.0)
    return select(b, b.apply("ne", x, x), x, below)


def _spherical_bessel_j0(b: Builder, x: Value) -> str:
    """sin(x) / x, 1 at zero and 0 at infinity."""
    x = b.floating(x)
    ratio = b.apply("div", b.apply("sin", x), x)
    far = b.apply("eq", b.apply("abs", x), float("inf"))
    return select(b, far, 0.0, select(b, b.apply("eq", x, 0.0), 1.0, ratio))


SPECIAL: dict[str, Lowering] = {
    "aten.angle.default": _angle,
    "aten.special_spherical_bessel_j0.default": _spherical_bessel_j0,
    "aten.special_erfcx.default": same("erfcx"),
}
