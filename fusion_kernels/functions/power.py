"""Powers and exact remainders, of floating values and of integers."""

from __future__ import annotations

import torch

from fusion_kernels.functions.function import Function, horner

# log(m) = 2 s (1 + t P(t)), s = (m - 1) / (m + 1), t = s^2 <= 0.0295, the series of atanh: 2e-9
_ATANH = (1 / 3, 1 / 5, 1 / 7, 1 / 9, 1 / 11)

UPPER_BITS = Function(
    "upper_bits",
    lambda x: x,
    '''@triton.jit
def upper_bits(x):
    """The upper 12 bits of the significand: products of two such values are exact."""
    return (x.to(tl.int32, bitcast=True) & -4096).to(tl.float32, bitcast=True)
''',
)

POWER_OF_TWO = Function(
    "power_of_two",
    torch.exp2,
    '''@triton.jit
def power_of_two(n):
    """2.0 ** n for an int32 from -126 to 127."""
    return ((n + 127) << 23).to(tl.float32, bitcast=True)
''',
)

POWER = Function(
    "power",
    torch.pow,
    f'''@triton.jit
def power(x, y):
    """x ** y as 2 ** (y log2(x)), the logarithm and the product in two float32 each; special
    cases as in C.
    """
    size = tl.abs(x)
    tiny = size < 1.1754943508222875e-38
    bits = tl.where(tiny, size * 16777216.0, size).to(tl.int32, bitcast=True)
    exponent = (bits >> 23) - tl.where(tiny, 151, 127)
    m = ((bits & 8388607) | 1065353216).to(tl.float32, bitcast=True)
    upper = m > 1.4142135
    m = tl.where(upper, 0.5 * m, m)
    e = (exponent + upper.to(tl.int32)).to(tl.float32)

    f = m - 1.0
    s = f / (m + 1.0)
    s_high = upper_bits(s)
    d_high = upper_bits(m + 1.0)
    d_low = m - (d_high - 1.0)
    s_low = (f - s_high * d_high - s_high * d_low) / (m + 1.0)
    t = s * s
{horner("p", "t", _ATANH)}
    s_low += s * (t * p)
    log_high = 2.884765625 * s_high
    log_low = 0.0006244567779266 * s_high + 2.8853900817779268 * s_low
    whole = e + log_high
    high = upper_bits(whole + log_low)
    low = log_low + (log_high - (high - e))

    y_high = upper_bits(y)
    product = y_high * high
    rest = y_high * low + (y - y_high) * (high + low)
    far = tl.abs(product) > 400.0
    product = tl.where(far, tl.where(product > 0.0, 400.0, -400.0), product)
    rest = tl.where(far, 0.0, rest)
    n = tl.floor(product + 0.5)
    two = tl.exp2(product - n + rest)
    n = tl.minimum(tl.maximum(n, -250.0), 250.0).to(tl.int32)
    half = n >> 1
    value = two * power_of_two(half) * power_of_two(n - half)

    infinity = float("inf")
    y_size = tl.abs(y)
    y_whole = tl.floor(y) == y
    odd = y_whole & (y_size < 16777216.0) & (tl.floor(0.5 * y) * 2.0 != y)
    edge = tl.where(y > 0.0, size, 1.0 / size)
    value = tl.where((size == 0.0) | (size == infinity), edge, value)
    endless = tl.where((size > 1.0) == (y > 0.0), infinity, 0.0)
    value = tl.where(y_size == infinity, tl.where(size == 1.0, 1.0, endless), value)
    negative = x.to(tl.int32, bitcast=True) < 0
    value = tl.where(negative & odd, -1.0 * value, value)
    ordinary = (size != 0.0) & (size != infinity) & (y_size != infinity)
    value = tl.where(negative & ordinary & (y_whole == 0), float("nan"), value)
    value = tl.where((x != x) | (y != y), float("nan"), value)
    return tl.where((x == 1.0) | (y == 0.0), 1.0, value)
''',
    ("upper_bits", "power_of_two"),
)

FMOD = Function(
    "fmod",
    torch.fmod,
    '''@triton.jit
def fmod(x, y):
    """The exact rest of x / y with x's sign, by long division of the significands."""
    x_bits = tl.abs(x).to(tl.int32, bitcast=True)
    y_bits = tl.abs(y).to(tl.int32, bitcast=True)
    x_normal, y_normal = x_bits >= 8388608, y_bits >= 8388608
    x_exponent = tl.where(x_normal, x_bits >> 23, 1)
    y_exponent = tl.where(y_normal, y_bits >> 23, 1)
    rest = ((x_bits & 8388607) | tl.where(x_normal, 8388608, 0)).to(tl.int64)
    divisor = ((y_bits & 8388607) | tl.where(y_normal, 8388608, 0)).to(tl.int64)
    divisor = tl.where(divisor == 0, 1, divisor)
    left = tl.where(x_bits < y_bits, 0, x_exponent - y_exponent)
    rest = tl.where(x_bits < y_bits, rest, rest % divisor)
    while tl.max(left) > 0:
        step = tl.minimum(left, 38)
        rest = (rest << step.to(tl.int64)) % divisor
        left -= step
    half = (y_exponent - 150) >> 1
    value = rest.to(tl.float32) * power_of_two(half) * power_of_two(y_exponent - 150 - half)
    value = tl.where(x_bits < y_bits, tl.abs(x), value)
    value = tl.where(x.to(tl.int32, bitcast=True) < 0, -1.0 * value, value)
    invalid = (x != x) | (y != y) | (tl.abs(x) == float("inf")) | (y == 0.0)
    return tl.where(invalid, float("nan"), value)
''',
    ("power_of_two",),
)

INT_POWER = Function(
    "int_power",
    torch.pow,
    '''@triton.jit
def int_power(x, y):
    """x ** y of integers, modulo 2**bits, by repeated squaring; with y < 0 what is left of 1/x."""
    value = x * 0 + 1
    square = x
    left = tl.where(y > 0, y, 0)
    while tl.max((left != 0).to(tl.int32)) > 0:
        value = tl.where((left & 1) != 0, value * square, value)
        square = square * square
        left = left >> 1
    unit = tl.where((x == 1) | ((x + 1 == 0) & ((y & 1) == 0)), 1, x * 0)
    unit = tl.where((x + 1 == 0) & ((y & 1) != 0), x, unit)
    return tl.where(y < 0, unit, value)
''',
)

GCD = Function(
    "gcd",
    torch.gcd,
    '''@triton.jit
def gcd(x, y):
    """The greatest common divisor of integers, by Euclid's algorithm."""
    a, b = tl.abs(x), tl.abs(y)
    while tl.max((b != 0).to(tl.int32)) > 0:
        rest = tl.where(b == 0, 0, a % tl.where(b == 0, 1, b))
        a = tl.where(b == 0, a, b)
        b = rest
    return a
''',
)

POWERS = (UPPER_BITS, POWER_OF_TWO, POWER, FMOD, INT_POWER, GCD)
