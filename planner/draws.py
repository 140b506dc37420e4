"""Fresh inputs like the example's: same structure, shapes, dtypes and strides, other values every
draw.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fusion_kernels.inputs import generator_for

# Beyond this a value stands for "minus infinity", as additive masks have it.
_HUGE = 1e30


def draw_like(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], seed: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments that a forward of the example's kind may get.

    Floating tensors are normal with the example's mean and deviation (deviation 1 where the
    example is constant). Integers are the example's in another order, so that ids stay within
    their tables. What has a structure with a meaning is kept: booleans, integers and mixtures of
    zeros and ones (masks, token types), floating tensors that hold infinities or the like.
    """
    positions = itertools.count()

    def draw(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.numel() == 0 or _has_meaning(leaf):
            return leaf
        distinct = _without_expansion(leaf)
        stream = zlib.crc32(f"{seed}/{next(positions)}".encode())
        own = generator_for(distinct.numel(), leaf.device, stream)
        values = _floating(distinct, own) if leaf.is_floating_point() else _shuffled(distinct, own)
        return _laid_out(values, distinct).expand(leaf.shape)

    drawn_args, drawn_kwargs = pytree.tree_map(draw, (tuple(args), dict(kwargs)))
    return drawn_args, drawn_kwargs


def _has_meaning(leaf: Tensor) -> bool:
    if leaf.dtype is torch.bool or leaf.is_complex() or leaf.layout is not torch.strided:
        return True
    flags = bool(((leaf == 0) | (leaf == 1)).all())
    if not leaf.is_floating_point():
        return flags
    mixed = flags and bool((leaf != leaf.reshape(-1)[0]).any())
    return mixed or not bool((leaf.double().abs() < _HUGE).all())


def _floating(leaf: Tensor, generator: torch.Generator) -> Tensor:
    place = generator.device
    values = leaf.detach().double()
    spread = float(values.std()) if values.numel() > 1 else 0.0
    normal = torch.randn(leaf.shape, generator=generator, dtype=torch.float64, device=place)
    return (normal * (spread or 1.0) + float(values.mean())).to(leaf.dtype).to(leaf.device)


def _shuffled(leaf: Tensor, generator: torch.Generator) -> Tensor:
    order = torch.randperm(leaf.numel(), generator=generator, device=generator.device)
    return leaf.reshape(-1)[order.to(leaf.device)].reshape(leaf.shape)


def _without_expansion(leaf: Tensor) -> Tensor:
    """The elements that lie in memory once each."""
    for dim, (size, stride) in enumerate(zip(leaf.shape, leaf.stride(), strict=True)):
        if stride == 0 and size > 1:
            leaf = leaf.narrow(dim, 0, 1)
    return leaf


def _laid_out(values: Tensor, like: Tensor) -> Tensor:
    """The values with the strides of `like`, which a guard of the fused module looks at."""
    if values.stride() == like.stride():
        return values
    made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
    return made.copy_(values)
