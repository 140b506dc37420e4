"""Puts a module and its batches where and in the dtype they were asked for."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from planner.sources.subject import Batch


def module(
    built: nn.Module, device: torch.device | None, dtype: str | None
) -> tuple[nn.Module, tuple[str, ...]]:
    """The module in eval mode, moved to `device` and cast to `dtype` where they are given, with a
    note for what the user may not expect.
    """
    notes = ("put into eval mode: the plan is for inference",) if built.training else ()
    built = built.eval()
    if device is not None:
        built = built.to(device)
    if dtype is not None and floating_dtype(built) != getattr(torch, dtype):
        built = built.to(getattr(torch, dtype))
    return built, notes


def batches(given: tuple[Batch, ...], home: nn.Module, dtype: str | None) -> tuple[Batch, ...]:
    """Every tensor on the module's device; floating ones cast to `dtype` where it is given."""
    device = next((t.device for t in (*home.parameters(), *home.buffers())), torch.device("cpu"))
    target = getattr(torch, dtype) if dtype else None

    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        cast = target if value.is_floating_point() else None
        return value.to(device=device, dtype=cast)

    return tuple(
        Batch(pytree.tree_map(move, b.args), pytree.tree_map(move, b.kwargs), b.weight)
        for b in given
    )


def floating_dtype(home: nn.Module) -> torch.dtype | None:
    """The dtype of the first floating parameter or buffer, None when there is none."""
    tensors = (*home.parameters(), *home.buffers())
    return next((t.dtype for t in tensors if t.is_floating_point()), None)


def elements(batch: Batch) -> int:
    """Elements of all tensors of a batch."""
    leaves = pytree.tree_leaves((batch.args, batch.kwargs))
    return sum(leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor))
