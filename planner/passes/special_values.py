"""Whether a library's call gives NaN and infinities where the operators do that it replaces."""

from __future__ import annotations

import math

import torch
from torch import Tensor

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


def agree(out: Tensor, wanted: Tensor) -> bool:
    """Whether NaN and infinities are in the same places."""
    return torch.equal(out.isnan(), wanted.isnan()) and torch.equal(out.isinf(), wanted.isinf())
