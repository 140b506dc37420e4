"""Fresh inputs like the example's: same structure, shapes and dtypes, other values every draw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def draw_like(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], seed: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments that a forward of the example's kind may get.

    Floating tensors are normal with the example's mean and deviation. Integers are the example's
    in another order, so that ids stay within their tables. Booleans and tensors of zeros and ones
    (masks, token types) are kept, since their structure has a meaning.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.numel() == 0:
            return leaf
        if leaf.is_floating_point():
            values = leaf.double().cpu()
            spread = float(values.std()) if values.numel() > 1 else 1.0
            normal = torch.randn(leaf.shape, generator=generator, dtype=torch.float64)
            return (normal * spread + float(values.mean())).to(leaf.dtype).to(leaf.device)
        if leaf.dtype is torch.bool or bool(((leaf == 0) | (leaf == 1)).all()):
            return leaf
        order = torch.randperm(leaf.numel(), generator=generator).to(leaf.device)
        return leaf.reshape(-1)[order].reshape(leaf.shape)

    drawn_args, drawn_kwargs = pytree.tree_map(draw, (tuple(args), dict(kwargs)))
    return drawn_args, drawn_kwargs
