"""A structural copy of the user's model and of a call's inputs: parameters shared, all else its
own, so that runs change nothing.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from planner.graph.errors import CaptureFailed, WrongInputs


def twin_of(module: nn.Module) -> nn.Module:
    """A copy with the same module tree whose parameters share storage with the user's.

    Parameters of the copy do not require grad; they keep their class and what was set on them.
    Buffers and tensors that are plain attributes are
    copied, their strides and what they share with one another kept: a forward that counts or
    caches in a buffer writes to the copy's. Tied parameters stay tied.

    Raises `CaptureFailed` when the module holds something that cannot be copied.
    """
    memo: dict[int, Any] = {}
    try:
        with torch.no_grad():
            for parameter in module.parameters():
                memo[id(parameter)] = _shared(parameter)
            for tensor in _own_tensors(module):
                memo.setdefault(id(tensor), copy.deepcopy(tensor.detach(), memo))
            return copy.deepcopy(module, memo)
    except Exception as error:
        raise CaptureFailed(
            f"{type(module).__name__} cannot be copied ({error}). Give it a __deepcopy__, or move "
            "what cannot be copied (open files, locks, handles) out of the module."
        ) from error


def clone_inputs(value: Any) -> Any:
    """The same nest of arguments with every tensor and container copied.

    Strides and what inputs share with one another are kept; no copy requires grad. Raises
    `WrongInputs` when an argument cannot be copied.
    """
    memo: dict[int, Any] = {}
    try:
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, Tensor):
                memo.setdefault(id(leaf), copy.deepcopy(leaf.detach(), memo))
        return copy.deepcopy(value, memo)
    except Exception as error:
        raise WrongInputs(
            f"An input of the model cannot be copied ({error}), and a capture runs the forward on "
            "copies. Pass tensors, numbers and plain containers."
        ) from error


def separate_inputs(value: Any) -> Any:
    """Copies as `clone_inputs` makes them, but no two share storage.

    A program exported for one tensor given twice would read the second argument for both.
    """

    def own(leaf: Any) -> Any:
        return copy.deepcopy(leaf) if isinstance(leaf, Tensor) else leaf

    return pytree.tree_map(own, clone_inputs(value))


def _shared(parameter: nn.Parameter) -> Tensor:
    """A parameter on the same storage, of the same class, with the same attributes."""
    cls: type[Any] = type(parameter)
    if issubclass(cls, nn.Parameter):
        own: Tensor = Tensor._make_subclass(cls, parameter.detach(), False)
    else:  # a tensor subclass that nn.Parameter has marked as one
        own = nn.Parameter(parameter.detach(), requires_grad=False)
    vars(own).update(vars(parameter))
    return own


def _own_tensors(module: nn.Module) -> list[Tensor]:
    """Buffers, and plain attributes that autograd computed: copy.deepcopy refuses those."""
    plain = [value for part in module.modules() for value in vars(part).values()]
    computed = [value for value in plain if isinstance(value, Tensor) and not value.is_leaf]
    return [*module.buffers(), *computed]
