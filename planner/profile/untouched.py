"""Runs a module many times and leaves it, its inputs and the random state as they were."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from planner.errors import FuseplanError


class CannotCopyInputs(FuseplanError):
    """An input cannot be copied, so a forward could change the caller's."""


def fresh_inputs(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Copies of a call's inputs: a forward may write into a tensor or grow a cache object.

    Strides, aliasing between inputs and objects that are no tensors are kept. Raises
    `CannotCopyInputs`.
    """
    leaves = pytree.tree_leaves((tuple(args), dict(kwargs)))
    # deepcopy refuses a tensor that autograd computed; its data is what a forward needs.
    memo: dict[int, Any] = {
        id(leaf): copy.deepcopy(leaf.detach())
        for leaf in leaves
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad and not leaf.is_leaf
    }
    try:
        return copy.deepcopy((tuple(args), dict(kwargs)), memo)
    except (TypeError, RuntimeError, NotImplementedError) as error:
        raise CannotCopyInputs(
            f"An input of the model cannot be copied ({error}), and a profile runs the forward "
            "many times. Pass tensors, numbers and plain containers."
        ) from error


@contextmanager
def restored(module: nn.Module, device: str) -> Iterator[None]:
    """On leaving, every buffer is the same object with the same data as before, and random
    generators stand where they stood.
    """
    owners = [(owner, dict(owner._buffers)) for owner in module.modules()]
    saved = {
        id(buffer): (buffer, buffer.detach().clone())
        for _, buffers in owners
        for buffer in buffers.values()
        if buffer is not None
    }
    cuda = [torch.device(device)] if device.startswith("cuda") else []
    try:
        with torch.random.fork_rng(devices=cuda):
            yield
    finally:
        for owner, buffers in owners:
            owner._buffers.clear()
            owner._buffers.update(buffers)
        for buffer, data in saved.values():
            _write_back(buffer, data)


def _write_back(buffer: torch.Tensor, data: torch.Tensor) -> None:
    """Restore a buffer's data; one that still holds it is left alone, so that its version counter
    is too.
    """
    same = torch.equal(buffer, data) if not buffer.is_floating_point() else _same_bits(buffer, data)
    if not same:
        with torch.inference_mode(buffer.is_inference()), torch.no_grad():
            buffer.copy_(data)


def _same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal, with NaN equal to NaN."""
    return bool(((left == right) | (left.isnan() & right.isnan())).all())
