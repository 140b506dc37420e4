"""Whether a library's call gives NaN and infinities where the operators do that it replaces."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def drawn_like(value: Tensor, *, special: bool) -> Tensor:
    """Normal values of the form of a (fake) tensor; with `special` the first is NaN, the last
    infinite.
    """
    drawn = torch.empty_strided(
        value.shape, value.stride(), dtype=value.dtype, device=value.device
    ).normal_()
    if special:
        drawn[(0,) * value.dim()], drawn[(-1,) * value.dim()] = math.nan, math.inf
    return drawn


def agree(out: Tensor, wanted: Tensor) -> bool:
    """Whether NaN and infinities are in the same places."""
    return torch.equal(out.isnan(), wanted.isnan()) and torch.equal(out.isinf(), wanted.isinf())
