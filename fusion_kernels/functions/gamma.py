"""The gamma function's logarithm and its derivatives, and the inverses of erf and of the normal
distribution. Coefficients: minimax fits as in `elementary`.
"""

from __future__ import annotations

from functools import partial

import torch

from fusion_kernels.functions.function import Function, horner

# log(gamma(x)) = (x - 1) (x - 2) P(x - middle) on [0.5, 1], [1, 1.75], [1.75, 3.5] and [3.5, 8],
# each with its middle: 3e-8 relative.
_LGAMMA = (
    (
        0.75,
        *(0.6504990465, -0.3523594161, 0.2940838275, -0.2889066737, 0.3074552435, -0.3423688345),
        *(0.3834917691, -0.4449488201, 0.6914256041, -0.8579969609),
    ),
    (
        1.375,
        *(0.5024224887, -0.1632991567, 0.07643305938, -0.04142357491, 0.02422659062),
        *(-0.01482159773, 0.009247028696, -0.005925802, 0.004590265361, -0.003089125192),
    ),
    (
        2.5,
        *(0.3795771611, -0.07466355569, 0.01990511734, -0.006019162743, 0.001949582093),
        *(-0.0006564300528, 0.0002263130092, -8.556312384e-05, 3.510283652e-05, -8.938903313e-06),
    ),
    (
        5.5,
        *(0.2512897803, -0.02534759422, 0.003248357427, -0.0004598410782, 6.887570376e-05),
        *(-1.059826165e-05, 1.638115806e-06, -2.915189909e-07, 6.042402718e-08, -7.250311571e-09),
    ),
)
# erfinv(x) / x as P(w - 2.5) and P(sqrt(w) - 3), w = -log((1 - x)(1 + x)) below and above 5: 2e-7
_ERFINV_MIDDLE = (
    *(1.501409422, 0.2466407261, -0.004177707745, -0.001253707515, 0.000218602194),
    *(-4.396781252e-06, -3.528859549e-06, 3.437270596e-07, 2.853478997e-08),
)
_ERFINV_TAIL = (
    *(2.832977223, 1.001675797, 0.009427416218, -0.007649034291, 0.005809802597),
    *(-0.003581915053, 0.001198997638, 1.532306175e-05, -9.037346856e-05),
)
# -ndtri(p) / r as P(1 / r), r = sqrt(-2 log p), above and below 3: 5e-8
_NDTRI_FAR = (
    *(1.000425634, -0.04515999169, -3.687916931, 11.86244398, -45.36372578, 137.5927402),
    *(-282.1781186, 340.9529608, -182.069664),
)
_NDTRI_NEAR = (
    *(1.004046198, -0.1373093699, -2.580233329, 3.674369813, -5.166160435, 5.690606382),
    *(-4.342152485, 2.005688515, -0.4196669163),
)
# Euler and Maclaurin's terms of the zeta function: B_2j / (2j)!
_BERNOULLI = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160)


def _lgamma_pieces() -> str:
    lines = []
    for number, (middle, *coefficients) in enumerate(_LGAMMA):
        lines += [f"    u = t - {middle}", horner(f"p{number}", "u", coefficients)]
    return "\n".join(lines)


LGAMMA_POSITIVE = Function(
    "lgamma_positive",
    torch.lgamma,
    f'''@triton.jit
def lgamma_positive(x):
    """log(gamma(x)) for x >= 1/2: four polynomials, from 8 on Stirling's series."""
    t = tl.minimum(x, 8.0)
{_lgamma_pieces()}
    p = tl.where(t < 1.0, p0, tl.where(t < 1.75, p1, tl.where(t < 3.5, p2, p3)))
    v = 1.0 / x
    t = v * v
    series = v * (0.08333333333333333 - t * (0.002777777777777778 - t * 0.0007936507936507937))
    large = (x - 0.5) * (tl.log(x) - 1.0) + 0.4189385332046727 + series
    value = tl.where(x < 8.0, (x - 1.0) * (x - 2.0) * p, large)
    return tl.where(x == float("inf"), x, value)
''',
)

LGAMMA = Function(
    "lgamma",
    torch.lgamma,
    '''@triton.jit
def lgamma(x):
    """log|gamma(x)|, below 1/2 by gamma(x) = gamma(x + 1) / x, below 0 by reflection."""
    size = tl.abs(x)
    small = size < 0.5
    value = lgamma_positive(tl.where(x < 0.5, tl.where(small, 1.0 + x, size), x))
    rest = size - tl.floor(size)
    sine = size * tl.sin(3.141592653589793 * tl.minimum(rest, 1.0 - rest))
    value = tl.where(small, value - tl.log(size), value)
    reflected = 1.1447298858494002 - tl.log(sine) - value
    value = tl.where(x <= -0.5, reflected, value)
    return tl.where(size == float("inf"), size, value)
''',
    ("lgamma_positive",),
)

DIGAMMA = Function(
    "digamma",
    torch.digamma,
    '''@triton.jit
def digamma(x):
    """log(y) - 1 / (2 y) - ..., after y = x + 8 - ...; below 1/2 by reflection."""
    left = x < 0.5
    y = tl.where(left, 1.0 - x, x)
    lost = 0.0 * y
    for _ in range(8):
        low = y < 8.0
        lost = tl.where(low, lost + 1.0 / y, lost)
        y = tl.where(low, y + 1.0, y)
    v = 1.0 / (y * y)
    series = v * (0.08333333333333333 - v * (0.008333333333333333 - v * 0.003968253968253968))
    value = tl.log(y) - 0.5 / y - series - lost
    rest = x - tl.floor(x)
    rest = tl.where(rest > 0.5, rest - 1.0, rest)
    angle = 3.141592653589793 * tl.where((x > -0.5) & (x < 0.5), x, rest)
    value = tl.where(left, value - 3.141592653589793 * tl.cos(angle) / tl.sin(angle), value)
    value = tl.where(x == float("inf"), x, value)
    value = tl.where((x < 0.0) & (tl.floor(x) == x), float("nan"), value)
    pole = tl.where(x.to(tl.int32, bitcast=True) < 0, float("inf"), -float("inf"))
    return tl.where(x == 0.0, pole, value)
''',
)


def _zeta_series() -> str:
    lines = ["    term = s / a * last"]
    for index, coefficient in enumerate(_BERNOULLI):
        if index:
            lines.append(f"    term = term * (s + {2.0 * index - 1}) / a * (s + {2.0 * index}) / a")
        sign = "-" if coefficient < 0 else "+"
        lines.append(f"    total = total {sign} {abs(coefficient)!r} * term")
    return "\n".join(lines)


ZETA = Function(
    "zeta",
    torch.special.zeta,
    f'''@triton.jit
def zeta(s, q):
    """The sum of (q + k) ** -s: nine terms or more, the rest by Euler and Maclaurin."""
    a = tl.where(q > -200.0, q, 10.0)
    last = power(a, -1.0 * s)
    total = last
    count = 0.0 * total
    while tl.max(((a <= 9.0) | (count < 9.0)).to(tl.int32)) > 0:
        more = (a <= 9.0) | (count < 9.0)
        a = tl.where(more, a + 1.0, a)
        last = tl.where(more, power(a, -1.0 * s), last)
        total = tl.where(more, total + last, total)
        count += 1.0
    total = total + last * a / (s - 1.0) - 0.5 * last
{_zeta_series()}
    outside = (s < 1.0) | ((q <= 0.0) & (tl.floor(s) != s)) | (q <= -200.0)
    total = tl.where(outside, float("nan"), total)
    total = tl.where((q <= 0.0) & (tl.floor(q) == q) & (s > 1.0), float("inf"), total)
    total = tl.where((s != s) | (q != q), float("nan"), total)
    return tl.where(s == 1.0, float("inf"), total)
''',
    ("power",),
)

ERFINV = Function(
    "erfinv",
    torch.erfinv,
    f'''@triton.jit
def erfinv(x):
    """x times a polynomial of w = -log((1 - x)(1 + x)), in the tail of its root."""
    w = -1.0 * tl.log((1.0 - x) * (1.0 + x))
    u = w - 2.5
{horner("middle", "u", _ERFINV_MIDDLE)}
    u = tl.sqrt(w) - 3.0
{horner("tail", "u", _ERFINV_TAIL)}
    value = x * tl.where(w < 5.0, middle, tail)
    return tl.where(tl.abs(x) == 1.0, x * float("inf"), value)
''',
)

NDTRI = Function(
    "ndtri",
    torch.special.ndtri,
    f'''@triton.jit
def ndtri(p):
    """sqrt(2) erfinv(2 p - 1); outside of [1/4, 3/4] from the nearer end by -2 log p."""
    end = tl.minimum(p, 1.0 - p)
    r = tl.sqrt(-2.0 * tl.log(end))
    v = 1.0 / r
{horner("far", "v", _NDTRI_FAR)}
{horner("near", "v", _NDTRI_NEAR)}
    tail = r * tl.where(r > 3.0, far, near)
    tail = tl.where(end == 0.0, float("inf"), tail)
    tail = tl.where(p < 0.5, -1.0 * tail, tail)
    return tl.where(tl.abs(p - 0.5) <= 0.25, 1.4142135623730951 * erfinv(2.0 * p - 1.0), tail)
''',
    ("erfinv",),
)


def _next_in(dtype: torch.dtype, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nextafter(x.to(dtype), y.to(dtype)).float()


def _next_after(name: str, dtype: torch.dtype, bits: int, evenly: float) -> Function:
    """Neighbours are `bits` apart as float32's bits; up to 2 ** `evenly` all lie equally far."""
    lowest, limit = (0.0, 0.0) if not evenly else (2.0**-24, 2.0**evenly)
    even = ""
    if evenly:
        even = f"""
    inside = (size < {limit}) | ((size == {limit}) & (grows == 0))
    value = tl.where(inside, tl.where(grows, size + {lowest}, size - {lowest}), value)"""
    text = f'''@triton.jit
def {name}(x, y):
    """The neighbour of x toward y among the values of {str(dtype)[6:]}."""
    size = tl.abs(x)
    grows = (x == 0.0) | ((y > x) == (x > 0.0))
    step = tl.where(grows, {bits}, -{bits})
    value = (size.to(tl.int32, bitcast=True) + step).to(tl.float32, bitcast=True){even}
    negative = (x < 0.0) | ((x == 0.0) & (y < 0.0))
    value = tl.where(negative, -1.0 * value, value)
    return tl.where(x == y, y, tl.where((x != x) | (y != y), float("nan"), value))
'''
    return Function(name, partial(_next_in, dtype), text)


NEXT_AFTER = (
    _next_after("next_float32", torch.float32, 1, 0),
    _next_after("next_bfloat16", torch.bfloat16, 1 << 16, 0),
    _next_after("next_float16", torch.float16, 1 << 13, -14),
)

GAMMA = (LGAMMA_POSITIVE, LGAMMA, DIGAMMA, ZETA, ERFINV, NDTRI, *NEXT_AFTER)
