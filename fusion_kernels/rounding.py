"""Correct rounding of float64 to a narrower dtype, and the distance between its neighbours."""

from __future__ import annotations

import torch
from torch import Tensor

_FLOAT64_EXPONENT = 0x7FF0000000000000


def round_once(reference: Tensor, dtype: torch.dtype) -> Tensor:
    """`reference` (float64, any shape) rounded once to `dtype`, ties to even.

    A plain conversion to a 16- or 8-bit dtype passes through float32 and rounds twice: 1 + 2**-8
    + 2**-40 would come out as bfloat16 1 instead of 1 + 2**-7. Rounding to odd in between leaves
    the second rounding right (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums:
    proved algorithms using rounding to odd", 2008).
    """
    if dtype in (torch.float64, torch.float32):
        return reference.to(dtype)
    return _round_to_odd_float32(reference).to(dtype)


def step_at(rounded: Tensor) -> Tensor:
    """The distance from each value to the next of larger magnitude, as float64; at zero and among
    subnormals the smallest subnormal. Values that are not finite give a meaningless step.
    """
    info = torch.finfo(rounded.dtype)
    # The exponent bits alone are the largest power of two that is not above the value.
    power = (rounded.double().view(torch.int64) & _FLOAT64_EXPONENT).view(torch.float64)
    return (power * info.eps).clamp_(min=info.smallest_normal * info.eps)


def _round_to_odd_float32(reference: Tensor) -> Tensor:
    nearest = reference.to(torch.float32)
    bits = nearest.view(torch.int32)
    widened = nearest.double()
    inexact = (widened != reference) & ~torch.isnan(reference)
    # In sign-magnitude order one bit pattern less is one value nearer to zero.
    truncated = bits - (widened.abs() > reference.abs()).to(torch.int32)
    return torch.where(inexact, truncated | 1, bits).view(torch.float32)
