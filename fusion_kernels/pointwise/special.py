"""Special functions of torch.special."""

from __future__ import annotations

import math

from fusion_kernels.builder import Builder, Lowering, Value
from fusion_kernels.functions.orthogonal import ORTHOGONAL
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


def _polygamma(b: Builder, n: int, x: Value) -> str:
    """(-1)^(n + 1) n! zeta(n + 1, x)."""
    if n == 0:
        return b.apply("digamma", x)
    zeta = b.apply("zeta", float(n + 1), b.floating(x))
    return b.apply("mul", zeta, float((-1) ** (n + 1) * math.factorial(n)))


def _mvlgamma(b: Builder, x: Value, p: int) -> str:
    """p (p - 1) / 4 log(pi) + the sum of log(gamma(x - j / 2)) for j < p."""
    x = b.floating(x)
    total: Value = p * (p - 1) / 4 * math.log(math.pi)
    for j in range(p):
        total = b.apply("add", b.apply("lgamma", b.apply("sub", x, j / 2)), total)
    return str(total)


def _next_after(b: Builder, x: Value, y: Value) -> str:
    """Of values as the result's dtype holds them: in between the kernel keeps float32."""
    of_dtype = [b.cast(value, b.result_dtype) for value in (x, y)]
    return b.apply(f"next_{b.result_dtype}", *of_dtype)


# ATen's name, and the device function.
_UNARY = {
    "aten.lgamma": "lgamma",
    "aten.special_gammaln": "lgamma",
    "aten.digamma": "digamma",
    "aten.special_digamma": "digamma",
    "aten.special_psi": "digamma",
    "aten.erfinv": "erfinv",
    "aten.special_erfinv": "erfinv",
    "aten.special_erfcx": "erfcx",
    "aten.special_ndtri": "ndtri",
    "aten.i0": "i0",
    "aten.special_i0": "i0",
    "aten.special_i0e": "i0e",
    "aten.special_i1": "i1",
    "aten.special_i1e": "i1e",
    "aten.special_modified_bessel_i0": "i0",
    "aten.special_modified_bessel_i1": "i1",
    "aten.special_modified_bessel_k0": "k0",
    "aten.special_modified_bessel_k1": "k1",
    "aten.special_scaled_modified_bessel_k0": "k0e",
    "aten.special_scaled_modified_bessel_k1": "k1e",
    "aten.special_bessel_j0": "j0",
    "aten.special_bessel_j1": "j1",
    "aten.special_bessel_y0": "y0",
    "aten.special_bessel_y1": "y1",
    "aten.special_airy_ai": "airy",
}

SPECIAL: dict[str, Lowering] = {
    **{f"{name}.default": same(function) for name, function in _UNARY.items()},
    **{
        f"aten.special_{item.name}.{form}": same(item.name)
        for item in ORTHOGONAL
        for form in ("default", "x_scalar", "n_scalar")
    },
    **{
        f"aten.special_zeta.{form}": same("zeta")
        for form in ("default", "self_scalar", "other_scalar")
    },
    "aten.polygamma.default": _polygamma,
    "aten.special_polygamma.default": _polygamma,
    "aten.mvlgamma.default": _mvlgamma,
    "aten.special_multigammaln.default": _mvlgamma,
    "aten.nextafter.default": _next_after,
    "aten.angle.default": _angle,
    "aten.special_spherical_bessel_j0.default": _spherical_bessel_j0,
}
