"""Whether a library's call gives NaN and infinities where the operators do that it replaces."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_NO_LESS_EXACT = 1.1
MISPLACED = "the library's has NaN or infinities where eager has none, or none where eager has some"
"""Why a call is not used."""


def drawn_like(value: Tensor, *, special: bool) -> Tensor:
    """Normal values of the form of a (fake) tensor, expanded ones too; with `special` the first in
    memory is NaN, the last infinite.
    """
    shape, stride = value.shape, value.stride()
    span = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    drawn = torch.randn(span, dtype=value.dtype, device=value.device)
    if special:
        drawn[0], drawn[-1] = math.nan, math.inf
    return drawn.as_strided(shape, stride)


def as_exact(out: Tensor, wanted: Tensor, exact: Tensor) -> bool:
    """Whether a result is at most 1.1 times as far from the truth, a float64 tensor, as eager's;
    what is not finite does not count.
    """
    there = wanted.isfinite() & out.isfinite()
    error, limit = ((value.double() - exact)[there].norm() for value in (out, wanted))
    return bool(error <= _NO_LESS_EXACT * limit)


def agree(out: Tensor, wanted: Tensor) -> bool:
    """Whether NaN and infinities are in the same places."""
    return torch.equal(out.isnan(), wanted.isnan()) and torch.equal(out.isinf(), wanted.isinf())
