"""A structural copy of the user's model: parameters shared, buffers its own, so runs change
nothing.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from planner.graph.errors import CaptureFailed


def twin_of(module: nn.Module) -> nn.Module:
    """A copy with the same module tree whose parameters share storage with the user's.

    Parameters of the copy do not require grad. Buffers are cloned: a forward that counts or
    caches in a buffer writes to the copy's. Tied parameters stay tied.

    Raises `CaptureFailed` when the module holds something that cannot be copied.
    """
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=False)
    for buffer in module.buffers():
        memo[id(buffer)] = buffer.detach().clone()
    try:
        with torch.no_grad():
            return copy.deepcopy(module, memo)
    except Exception as error:
        raise CaptureFailed(
            f"{type(module).__name__} cannot be copied ({error}). Give it a __deepcopy__, or move "
            "what cannot be copied (open files, locks, handles) out of the module."
        ) from error


def clone_inputs(value: Any) -> Any:
    """The same nest of arguments with every tensor cloned, strides kept."""
    from torch.utils import _pytree as pytree

    def clone(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        copied = torch.empty_strided(
            leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device
        )
        return copied.copy_(leaf.detach())

    return pytree.tree_map(clone, value)
