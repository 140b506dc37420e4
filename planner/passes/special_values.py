"""Tries of a library's call beside the operators it replaces: NaN and infinities, exactness."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

_NO_LESS_EXACT = 1.1
MISPLACED = "the library refuses it, or has NaN or infinities elsewhere than eager"
"""Why a call is not used."""


def drawn_like(value: Tensor, *, special: bool) -> Tensor:
    """Normal values of the form of a (fake) tensor, expanded ones too, the same each time; with
    `special` the first in memory is NaN, the last infinite. The caller's random state stays.
    """
    shape, stride = value.shape, value.stride()
    span = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    generator = torch.Generator(value.device).manual_seed(0)
    drawn = torch.randn(span, dtype=value.dtype, device=value.device, generator=generator)
    if special:
        drawn[0], drawn[-1] = math.nan, math.inf
    return drawn.as_strided(shape, stride)


def holds(check: Callable[[], bool]) -> bool:
    """What the check says; not where the library refuses the call, as one of another backend."""
    try:
        return check()
    except RuntimeError:
        return False


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
