"""Bessel functions of order 0 and 1, and Airy's. Coefficients: minimax fits as in `elementary`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fusion_kernels.functions.function import Function, horner

# I0(x) = P(t), I1(x) = x P(t), t = (x / 3.75)^2 <= 1: 1e-8
_I_SMALL = (
    (1.000000012, 3.515623419, 3.089936905, 1.206763444, 0.265963249, 0.03607243659, 0.00458628859),
    (
        *(0.5000000011, 0.8789061146, 0.5149866294, 0.1508575581, 0.02657260685, 0.003027541065),
        0.0003202719795,
    ),
)
# sqrt(x) exp(-x) I(x) = P(3.75 / x): 4e-8
_I_LARGE = (
    (
        *(0.3989422918, 0.01329630285, 0.002039525071, 0.0001398077316, 0.001936468645),
        *(-0.002814566445, -4.384201931e-05, 0.006900294887, -0.00743163202, 0.002329655313),
    ),
    (
        *(0.3989422675, -0.03989226892, -0.003372773399, -0.0003429299443, -0.001994381892),
        *(0.002411685529, 0.001377924694, -0.008995779204, 0.00886838061, -0.002685312854),
    ),
)
# K0(x) = P(t) - log(x/2) I0(x), K1(x) = P(t) / x + log(x/2) I1(x), t = (x / 2)^2 <= 1: 2e-10
_K_SMALL = (
    (
        *(-0.5772156649, 0.4227843341, 0.2306960999, 0.03489206084, 0.002615062544),
        *(0.0001180796939, 3.900536432e-06),
    ),
    (
        *(0.9999999999, 0.1544313436, -0.6727845552, -0.1815738509, -0.01918593275),
        *(-0.001109909316, -4.533154274e-05),
    ),
)
# sqrt(x) exp(x) K(x) = P(2 / x): 4e-10
_K_LARGE = (
    (
        *(1.253314137, -0.07833204767, 0.02202772503, -0.01142767948, 0.008424100039),
        *(-0.0071884223, 0.005710967883, -0.003465480922, 0.001326125002, -0.0002322414604),
    ),
    (
        *(1.253314138, 0.2349963066, -0.03671464294, 0.01601161247, -0.01088557813),
        *(0.008925205696, -0.006966186782, 0.004199807455, -0.001605082388, 0.0002813942743),
    ),
)
# J and Y from 8 on: sqrt(2 / (pi x)) times P(t) and Q(t) 8/x with cos and sin, t = (8 / x)^2: 1e-10
_AMPLITUDE = (
    (0.9999999999, -0.001098628627, 2.734510172e-05, -2.073367337e-06, 2.093871989e-07),
    (1.0, 0.00183105, -3.516396238e-05, 2.457516569e-06, -2.40335361e-07),
)
_PHASE = (
    (-0.01562499986, 0.0001430482145, -6.913292944e-06, 7.777276704e-07, -1.150330435e-07),
    (0.04687499994, -0.0002002705393, 8.465010344e-06, -9.324982516e-07, 1.609098314e-07),
)
# On [0, 2.7], [2.7, 5.4] and [5.4, 8] by P(x - middle): J0, J1 / x, Y0 - (2/pi) log(x) J0 and
# (Y1 - (2/pi) (log(x) J1 - 1/x)) / x, 3e-7 absolute.
_MIDDLES = (1.35, 4.05, 6.7)
_J = (
    (
        (
            *(0.5937196422, -0.5324700602, -0.09964856256, 0.0646536495, 0.005252738164),
            *(-0.002651192517, -0.0001325436482, 5.209733838e-05, 1.860074377e-06),
        ),
        (
            *(-0.3933753124, 0.08487203295, 0.1862113927, -0.02860469759, -0.01197058948),
            *(0.001489014231, 0.0003301713573, -3.133024414e-05, -5.716901654e-06),
        ),
        (
            *(0.2850647281, 0.09534216607, -0.1496474189, -0.008091350988, 0.01219019966),
            *(6.609374546e-05, -0.0003738251756, 2.715275918e-06, 5.837582686e-06),
        ),
    ),
    (
        (
            *(0.3944224547, -0.1445372119, -0.03661429704, 0.01155751768, 0.001271673362),
            *(-0.0003518631301, -2.338712354e-05, 5.532331051e-06, 2.571043291e-07),
        ),
        (
            *(-0.02095627976, -0.08678097988, 0.04261968693, 0.001295262605, -0.00216684387),
            *(5.018985851e-05, 4.783887196e-05, -1.460861268e-06, -8.016894686e-07),
        ),
        (
            *(-0.01423016107, 0.04679477232, -0.003361352241, -0.006776171915, 0.0009622822816),
            *(0.0001914470567, -3.168471634e-05, -2.492365918e-06, 4.666129176e-07),
        ),
    ),
)
_Y = (
    (
        (
            *(0.199650591, 0.3352290084, 0.02711276614, -0.0625785108, -0.003429844425),
            *(0.003161128837, 0.0001219487271, -7.051290674e-05, -2.074151974e-06),
        ),
        (
            *(0.3135970794, -0.405417525, -0.120091078, 0.05491167571, 0.01043557422),
            *(-0.002560602572, -0.0003549135701, 5.392734643e-05, 7.434464948e-06),
        ),
        (
            *(-0.4613815288, 0.1519213522, 0.2102940497, -0.02528769347, -0.01619837307),
            *(0.001164276345, 0.0005179585276, -2.507373147e-05, -8.552957045e-06),
        ),
    ),
    (
        (
            *(-0.1003617218, 0.1219688404, 0.0235191914, -0.01290566142, -0.001102277058),
            *(0.0004604359429, 2.402963479e-05, -8.047586144e-06, -3.143062607e-07),
        ),
        (
            *(0.1541835536, 0.004585321055, -0.04492897479, 0.002675100731, 0.002512512738),
            *(-0.0001621574971, -5.969637952e-05, 3.751939873e-06, 6.106447967e-07),
        ),
        (
            *(-0.01253580469, -0.0637687405, 0.0233908141, 0.005913935576, -0.001885945798),
            *(-0.0001639703473, 5.447825286e-05, 2.124161834e-06, -7.932880132e-07),
        ),
    ),
)
# The first piece of Y1 has a middle of its own.
_Y_MIDDLES = (_MIDDLES, (1.4, 4.05, 6.7))
# Ai(x) exp(z) x^(1/4) = P(1 / z), z = (2/3) x^(3/2), from 2.1 on: 3e-10
_AIRY_LARGE = (
    *(0.2820947916, -0.01958987733, 0.01047273002, -0.01065469315, 0.01539031927, -0.02525731891),
    *(0.03769377826, -0.04222361568, 0.0295208186, -0.009391697111),
)
# Ai on [-1.5, 2.1], [-4, -1.5] and [-6.5, -4] by P(x - middle): 2e-6 absolute
_AIRY_MIDDLES = (0.3, -2.75, -5.25)
_AIRY = (
    (
        *(0.2788064292, -0.2451461971, 0.04182215321, 0.03420916253, -0.01938759805),
        *(0.002607006342, 0.0009520954451, -0.000445612417, 4.830224987e-05, 1.25951188e-05),
        *(-3.887998579e-06, 1.946516035e-07),
    ),
    (
        *(-0.268490536, 0.5513254476, 0.3691763551, -0.297274371, -0.03864920616),
        *(0.05876164874, -0.006404481956, -0.003966455806, 0.001401005289, -0.0004223663977),
        *(-9.818260161e-05, 0.0001247654517),
    ),
    (
        *(0.2190093063, 0.7015672203, -0.5748932023, -0.577377102, 0.3099328315),
        *(0.122850321, -0.07335570731, -0.008043415317, 0.008912711365, -0.0003674519206),
        *(-0.00052052652, 6.788692266e-05),
    ),
)


def _pieces(middles: tuple[float, ...], pieces: tuple[tuple[float, ...], ...]) -> str:
    lines = []
    for number, (middle, piece) in enumerate(zip(middles, pieces, strict=True)):
        sign = "-" if middle > 0 else "+"
        lines += [f"    u = s {sign} {abs(middle)}", horner(f"p{number}", "u", piece)]
    return "\n".join(lines)


def _i_scaled(order: int, evaluate: Callable[..., Any]) -> Function:
    odd = "size * " if order else ""
    return Function(
        f"i{order}_scaled",
        evaluate,
        f'''@triton.jit
def i{order}_scaled(size):
    """exp(-x) I{order}(x) for x >= 0, a polynomial up to 3.75 and one of 3.75 / x beyond."""
    t = tl.minimum(size, 3.75) / 3.75
    t = t * t
{horner("small", "t", _I_SMALL[order])}
    v = 3.75 / tl.maximum(size, 3.75)
{horner("large", "v", _I_LARGE[order])}
    return tl.where(size < 3.75, {odd}small * tl.exp(-1.0 * size), large / tl.sqrt(size))
''',
    )


def _i(order: int, scaled: bool, evaluate: Callable[..., Any]) -> Function:
    name = f"i{order}e" if scaled else f"i{order}"
    grown = (
        ""
        if scaled
        else """
    root = tl.exp(0.5 * size)
    value = tl.where(size == float("inf"), size, value * root * root)"""
    )
    signed = "tl.where(x < 0.0, -1.0 * value, value)" if order else "value"
    return Function(
        name,
        evaluate,
        f'''@triton.jit
def {name}(x):
    """The modified Bessel function I{order}{", times exp(-|x|)" if scaled else ""}."""
    size = tl.abs(x)
    value = i{order}_scaled(size){grown}
    return tl.where(x != x, x, {signed})
''',
        (f"i{order}_scaled",),
    )


def _k(order: int, scaled: bool, evaluate: Callable[..., Any]) -> Function:
    name = f"k{order}e" if scaled else f"k{order}"
    near = f"small{' / s' if order else ''} {'+' if order else '-'} tl.log(0.5 * s) * i{order}(s)"
    left, right = (" * tl.exp(s)", "") if scaled else ("", " * tl.exp(-1.0 * x)")
    return Function(
        name,
        evaluate,
        f'''@triton.jit
def {name}(x):
    """The modified Bessel function K{order}{", times exp(x)" if scaled else ""}."""
    s = tl.minimum(x, 2.0)
    t = 0.25 * s * s
{horner("small", "t", _K_SMALL[order])}
    near = ({near}){left}
    v = 2.0 / tl.maximum(x, 2.0)
{horner("large", "v", _K_LARGE[order])}
    value = tl.where(x <= 2.0, near, large / tl.sqrt(x){right})
    value = tl.where(x == 0.0, float("inf"), value)
    return tl.where((x < 0.0) | (x != x), float("nan"), value)
''',
        (f"i{order}",),
    )


def _far(order: int, second: bool) -> str:
    """Lines that set `far`: cos and sin of x - pi/4 (or 3 pi/4) by those of x."""
    cosine, sine = ("tl.cos(x) + tl.sin(x)", "tl.sin(x) - tl.cos(x)")
    if order:
        cosine, sine = "tl.sin(x) - tl.cos(x)", "-1.0 * tl.sin(x) - tl.cos(x)"
    sum_ = "p * sine + q * cosine" if second else "p * cosine - q * sine"
    return f"""    v = 8.0 / tl.maximum(x, 8.0)
    t = v * v
{horner("p", "t", _AMPLITUDE[order])}
{horner("q", "t", _PHASE[order])}
    q = q * v
    cosine, sine = {cosine}, {sine}
    far = 0.5641895835477563 / tl.sqrt(x) * ({sum_})"""


_CHOICE = "tl.where(s < 2.7, p0, tl.where(s < 5.4, p1, p2))"


def _j(order: int, evaluate: Callable[..., Any]) -> Function:
    return Function(
        f"j{order}",
        evaluate,
        f'''@triton.jit
def j{order}(y):
    """The Bessel function J{order}: three polynomials up to 8, beyond amplitude and phase."""
    x = tl.abs(y)
    s = tl.minimum(x, 8.0)
{_pieces(_MIDDLES, _J[order])}
    near = {"s * " if order else ""}{_CHOICE}
{_far(order, False)}
    value = tl.where(x < 8.0, near, far)
    return tl.where(y != y, y, {"tl.where(y < 0.0, -1.0 * value, value)" if order else "value"})
''',
    )


def _y(order: int, evaluate: Callable[..., Any]) -> Function:
    near = (
        f"s * {_CHOICE} + 0.6366197723675814 * (tl.log(s) * j1(s) - 1.0 / s)"
        if order
        else f"{_CHOICE} + 0.6366197723675814 * tl.log(s) * j0(s)"
    )
    return Function(
        f"y{order}",
        evaluate,
        f'''@triton.jit
def y{order}(x):
    """The Bessel function Y{order}: three polynomials up to 8, beyond amplitude and phase."""
    s = tl.minimum(x, 8.0)
{_pieces(_Y_MIDDLES[order], _Y[order])}
    near = {near}
{_far(order, True)}
    value = tl.where(x < 8.0, near, far)
    value = tl.where(x == 0.0, -float("inf"), value)
    return tl.where((x < 0.0) | (x != x), float("nan"), value)
''',
        (f"j{order}",),
    )


AIRY = Function(
    "airy",
    torch.special.airy_ai,
    f'''@triton.jit
def airy(x):
    """Airy's Ai: three polynomials from -6.5 to 2.1, beyond the asymptotic expansions."""
    s = tl.minimum(tl.maximum(x, -6.5), 2.1)
{_pieces(_AIRY_MIDDLES, _AIRY)}
    near = tl.where(s > -1.5, p0, tl.where(s > -4.0, p1, p2))
    size = tl.maximum(tl.abs(x), 1.0)
    root = tl.sqrt(size)
    z = 0.6666666666666666 * size * root
    v = 1.0 / tl.maximum(z, 1.8)
{horner("large", "v", _AIRY_LARGE)}
    right = large * tl.exp(-1.0 * z) / tl.sqrt(root)
    t = v * v
    p = 1.0 - t * (0.037133487654320986 - 0.05764919041266972 * t)
    q = v * (0.06944444444444445 - t * (0.03799305912780064 - 0.1160990640255154 * t))
    wave = (tl.sin(z) + tl.cos(z)) * p - (tl.cos(z) - tl.sin(z)) * q
    left = 0.3989422804014327 * wave / tl.sqrt(root)
    value = tl.where(x > 2.1, right, tl.where(x < -6.5, left, near))
    return tl.where(x != x, x, value)
''',
)

_SPECIAL = torch.special
BESSEL = (
    _i_scaled(0, _SPECIAL.i0e),
    _i_scaled(1, _SPECIAL.i1e),
    _i(0, False, torch.i0),
    _i(1, False, _SPECIAL.i1),
    _i(0, True, _SPECIAL.i0e),
    _i(1, True, _SPECIAL.i1e),
    _k(0, False, _SPECIAL.modified_bessel_k0),
    _k(1, False, _SPECIAL.modified_bessel_k1),
    _k(0, True, _SPECIAL.scaled_modified_bessel_k0),
    _k(1, True, _SPECIAL.scaled_modified_bessel_k1),
    _j(0, _SPECIAL.bessel_j0),
    _j(1, _SPECIAL.bessel_j1),
    _y(0, _SPECIAL.bessel_y0),
    _y(1, _SPECIAL.bessel_y1),
    AIRY,
)
