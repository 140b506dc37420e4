"""Orthogonal polynomials of any degree by their three-term recurrences."""

from __future__ import annotations

import torch

from fusion_kernels.functions.function import Function

# Degree one, and the step from degrees k - 1 (`before`) and k (`value`) to k + 1.
_CHEBYSHEV = "2.0 * x * value - before"
_RECURRENCES = {
    "chebyshev_polynomial_t": ("x", _CHEBYSHEV),
    "chebyshev_polynomial_u": ("2.0 * x", _CHEBYSHEV),
    "chebyshev_polynomial_v": ("2.0 * x - 1.0", _CHEBYSHEV),
    "chebyshev_polynomial_w": ("2.0 * x + 1.0", _CHEBYSHEV),
    "hermite_polynomial_h": ("2.0 * x", "2.0 * (x * value - k * before)"),
    "hermite_polynomial_he": ("x", "x * value - k * before"),
    "laguerre_polynomial_l": (
        "1.0 - x",
        "((2.0 * k + 1.0 - x) * value - k * before) / (k + 1.0)",
    ),
    "legendre_polynomial_p": ("x", "((2.0 * k + 1.0) * x * value - k * before) / (k + 1.0)"),
}


def _polynomial(name: str, first: str, step: str, shifted: bool) -> Function:
    full_name = f"shifted_{name}" if shifted else name
    shift = "\n    x = 2.0 * x - 1.0" if shifted else ""
    return Function(
        full_name,
        getattr(torch.special, full_name),
        f'''@triton.jit
def {full_name}(x, n):
    """Degree n by recurrence; 0 for n < 0."""{shift}
    degree = n.to(tl.int32)
    before = 0.0 * x + 1.0
    value = {first}
    result = tl.where(degree <= 0, tl.where(degree < 0, 0.0, 1.0), value)
    last = tl.max(degree)
    k = tl.full((), 1.0, tl.float32)
    while k < last:
        following = {step}
        before = value
        value = following
        k += 1.0
        result = tl.where(degree == k, value, result)
    return tl.where(x != x, x, result)
''',
    )


ORTHOGONAL = (
    *(_polynomial(name, *parts, shifted=False) for name, parts in _RECURRENCES.items()),
    *(
        _polynomial(name, *parts, shifted=True)
        for name, parts in _RECURRENCES.items()
        if name.startswith("chebyshev")
    ),
)
