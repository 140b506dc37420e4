"""Rounding, exponentials, logarithms, circular and hyperbolic functions and the tail of erf.

Polynomials are minimax fits of the relative error (least squares with Lawson's weights on 3,000
Chebyshev nodes, float64). `tests/kernels/test_functions.py` measures every error again.
"""

from __future__ import annotations

import torch

from fusion_kernels.functions.function import Function, horner

# asin(x) = x + x t P(t), t = x^2 <= 1/4: 5e-9
_ASIN = (0.1666675413, 0.07495232672, 0.04547834174, 0.02414099791, 0.04223052999)
# atan(x) = x + x t P(t), t = x^2 <= tan(pi/8)^2: 2e-8
_ATAN = (-0.3333295422, 0.1997788188, -0.1387932909, 0.08058496522)
# e^x - 1 = x + x^2 P(x), |x| <= 1/2, Taylor's series: 6e-9
_EXPM1 = (1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720, 1 / 5040, 1 / 40320)
# (1 + 2 x) e^(x^2) erfc(x) = P((x - 3) / (x + 3)), x >= 0: 3.3e-9
_ERFCX = (
    *(1.253008057, -0.1356210578, -0.04756218385, 0.1296438562, -0.1192750342, 0.0683181396),
    *(-0.02376431461, 0.002495276224, 0.001875985795, -0.0007223981457, -9.292988804e-05),
    7.576725997e-05,
)

ROUND = Function(
    "round",
    torch.round,
    '''@triton.jit
def round(x):
    """To the nearest whole number, halves to the even one; a zero keeps x's sign."""
    below = tl.floor(x)
    rest = x - below
    odd = below * 0.5 != tl.floor(below * 0.5)
    nearest = tl.where((rest > 0.5) | ((rest == 0.5) & odd), below + 1.0, below)
    return tl.where((x < 0.0) & (nearest == 0.0), -1.0 * nearest, nearest)
''',
)

EXPM1 = Function(
    "expm1",
    torch.expm1,
    f'''@triton.jit
def expm1(x):
    """exp(x) - 1, near zero by its series."""
{horner("p", "x", _EXPM1)}
    return tl.where(tl.abs(x) < 0.5, x + x * x * p, tl.exp(x) - 1.0)
''',
)

LOG1P = Function(
    "log1p",
    torch.log1p,
    '''@triton.jit
def log1p(x):
    """log(1 + x): the rounding of u = 1 + x is made good by the factor x / (u - 1)."""
    u = 1.0 + x
    whole = (u == 1.0) | (u == float("inf"))
    scale = tl.where(whole, 1.0, x / tl.where(whole, 1.0, u - 1.0))
    return tl.where(u == 1.0, x, tl.log(u) * scale)
''',
)

SINH = Function(
    "sinh",
    torch.sinh,
    '''@triton.jit
def sinh(x):
    """Half of e + e / (e + 1), e = expm1(|x|); from 1 on by exp(|x| / 2), which does not overflow
    early.
    """
    size = tl.abs(x)
    e = expm1(tl.minimum(size, 2.0))
    root = tl.exp(0.5 * size)
    large = 0.5 * root * root - 0.5 / root / root
    value = tl.where(size < 1.0, 0.5 * (e + e / (e + 1.0)), large)
    return tl.where(x < 0.0, -1.0 * value, tl.where(x == 0.0, x, value))
''',
    ("expm1",),
)

COSH = Function(
    "cosh",
    torch.cosh,
    '''@triton.jit
def cosh(x):
    """By exp(|x| / 2), which does not overflow early."""
    root = tl.exp(0.5 * tl.abs(x))
    return 0.5 * root * root + 0.5 / root / root
''',
)

ASIN = Function(
    "asin",
    torch.asin,
    f'''@triton.jit
def asin(x):
    """A polynomial up to 1/2, beyond by asin(x) = pi/2 - 2 asin(sqrt((1 - x) / 2))."""
    size = tl.abs(x)
    small = size <= 0.5
    t = tl.where(small, x * x, 0.5 * (1.0 - size))
    s = tl.where(small, size, tl.sqrt(t))
{horner("p", "t", _ASIN)}
    inner = s + s * t * p
    value = tl.where(small, inner, 1.5707963267948966 - 2.0 * inner)
    return tl.where(x < 0.0, -1.0 * value, tl.where(x == 0.0, x, value))
''',
)

ACOS = Function(
    "acos",
    torch.acos,
    '''@triton.jit
def acos(x):
    """pi/2 - asin(x) up to 1/2, beyond 2 asin(sqrt((1 - |x|) / 2)) from either end."""
    size = tl.abs(x)
    ends = 2.0 * asin(tl.sqrt(0.5 * (1.0 - size)))
    middle = 1.5707963267948966 - asin(x)
    return tl.where(size <= 0.5, middle, tl.where(x < 0.0, 3.141592653589793 - ends, ends))
''',
    ("asin",),
)

ATAN = Function(
    "atan",
    torch.atan,
    f'''@triton.jit
def atan(x):
    """A polynomial up to tan(pi/8); beyond by the angle from pi/4, beyond tan(3 pi/8) from pi/2."""
    size = tl.abs(x)
    middle = size > 0.4142135623730950
    outer = size > 2.414213562373095
    ratio = tl.where(middle, (size - 1.0) / (size + 1.0), size)
    ratio = tl.where(outer, -1.0 / size, ratio)
    t = ratio * ratio
{horner("p", "t", _ATAN)}
    start = tl.where(middle, 0.7853981633974483, 0.0)
    start = tl.where(outer, 1.5707963267948966, start)
    value = start + (ratio + ratio * t * p)
    return tl.where(x < 0.0, -1.0 * value, tl.where(x == 0.0, x, value))
''',
)

ATAN2 = Function(
    "atan2",
    torch.atan2,
    '''@triton.jit
def atan2(y, x):
    """The angle of the point (x, y), the signs of zeros and infinities as in C."""
    tall, wide = tl.abs(y), tl.abs(x)
    large, small = tl.maximum(tall, wide), tl.minimum(tall, wide)
    ratio = tl.where(large == 0.0, 0.0, small / tl.where(large == 0.0, 1.0, large))
    ratio = tl.where(small == float("inf"), 1.0, ratio)
    angle = atan(ratio)
    angle = tl.where(tall > wide, 1.5707963267948966 - angle, angle)
    left = x.to(tl.int32, bitcast=True) < 0
    angle = tl.where(left, 3.141592653589793 - angle, angle)
    angle = tl.where(y.to(tl.int32, bitcast=True) < 0, -1.0 * angle, angle)
    return tl.where((x != x) | (y != y), x + y, angle)
''',
    ("atan",),
)

ASINH = Function(
    "asinh",
    torch.asinh,
    '''@triton.jit
def asinh(x):
    """log1p(|x| + x^2 / (1 + sqrt(x^2 + 1))); where x^2 might overflow, log(2 |x|)."""
    size = tl.abs(x)
    large = size > 1e8
    s = tl.where(large, 1.0, size)
    value = log1p(s + s * s / (1.0 + tl.sqrt(s * s + 1.0)))
    value = tl.where(large, tl.log(size) + 0.6931471805599453, value)
    value = tl.where(x < 0.0, -1.0 * value, tl.where(x == 0.0, x, value))
    return tl.where(x != x, x, value)
''',
    ("log1p",),
)

ACOSH = Function(
    "acosh",
    torch.acosh,
    '''@triton.jit
def acosh(x):
    """log1p(t + sqrt(t (t + 2))), t = x - 1; where that might overflow, log(2 x)."""
    large = x > 1e8
    t = tl.where(large, 1.0, x - 1.0)
    value = log1p(t + tl.sqrt(t * (t + 2.0)))
    value = tl.where(large, tl.log(x) + 0.6931471805599453, value)
    return tl.where(x < 1.0, float("nan"), value)
''',
    ("log1p",),
)

ATANH = Function(
    "atanh",
    torch.atanh,
    '''@triton.jit
def atanh(x):
    """Half of log1p(2 |x| / (1 - |x|))."""
    size = tl.abs(x)
    value = 0.5 * log1p(2.0 * size / (1.0 - size))
    value = tl.where(size > 1.0, float("nan"), value)
    return tl.where(x < 0.0, -1.0 * value, tl.where(x == 0.0, x, value))
''',
    ("log1p",),
)

ERFCX_POSITIVE = Function(
    "erfcx_positive",
    torch.special.erfcx,
    f'''@triton.jit
def erfcx_positive(x):
    """exp(x^2) erfc(x) for x >= 0."""
    q = tl.where(x > 1e30, 1.0, (x - 3.0) / (x + 3.0))
{horner("p", "q", _ERFCX)}
    return 0.5 * p / (0.5 + x)
''',
)

ERFC = Function(
    "erfc",
    torch.erfc,
    '''@triton.jit
def erfc(x):
    """exp(-x^2) times a rational; x^2 in two parts, of which the first is exact."""
    size = tl.minimum(tl.abs(x), 11.0)
    high = (size.to(tl.int32, bitcast=True) & -4096).to(tl.float32, bitcast=True)
    scale = tl.exp(-1.0 * high * high) * tl.exp((high - size) * (high + size))
    tail = scale * erfcx_positive(size)
    return tl.where(x != x, x, tl.where(x < 0.0, 2.0 - tail, tail))
''',
    ("erfcx_positive",),
)

ERFCX = Function(
    "erfcx",
    torch.special.erfcx,
    '''@triton.jit
def erfcx(x):
    """exp(x^2) erfc(x); below zero 2 exp(x^2) - erfcx(-x), x^2 in two parts."""
    size = tl.minimum(tl.abs(x), 20.0)
    high = (size.to(tl.int32, bitcast=True) & -4096).to(tl.float32, bitcast=True)
    growth = 2.0 * tl.exp(high * high) * tl.exp((size - high) * (size + high))
    tail = erfcx_positive(tl.abs(x))
    return tl.where(x < 0.0, growth - tail, tail)
''',
    ("erfcx_positive",),
)

ELEMENTARY = (
    *(ROUND, EXPM1, LOG1P, SINH, COSH, ASIN, ACOS, ATAN, ATAN2, ASINH, ACOSH, ATANH),
    *(ERFCX_POSITIVE, ERFC, ERFCX),
)
