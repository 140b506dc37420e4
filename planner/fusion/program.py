"""A fused program bound to a module's weights: its guards, and one run of it."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.export import ExportedProgram

from planner.fusion.call import same_constant
from planner.fusion.expected import PLAIN, Expected, describe, is_plain
from planner.fusion.runnable import OTHER_CALL, RunnableProgram
from planner.graph.autocast import refused_autocast, without_autocast


class BoundProgram(RunnableProgram):
    """A program that runs only where everything is as it was captured."""

    _seen: list[Tensor]

    def __init__(self, twin: nn.Module, program: ExportedProgram) -> None:
        super().__init__(twin, program)
        self._dtypes = [meta.dtype for meta in self._weight_metas]

    def leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        """The call's leaves in the program's order, or None when a guard does not hold."""
        leaves = self._form.leaves(args, kwargs)
        if leaves is None or self._refused(leaves):
            return None
        return leaves

    def refusal(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The guard that does not hold, in words."""
        leaves = self._form.leaves(args, kwargs)
        if leaves is None:
            return OTHER_CALL
        return self._refused(leaves)

    def refused_state(self) -> str:
        """What has changed around the call since the capture. Runs at every call: about 20 us for
        a hundred weights."""
        device = self._device
        autocast = refused_autocast(self._autocast, device.type)
        if autocast:
            return autocast
        if device.type == "cuda" and torch.cuda.current_device() != device.index:
            return f"the current CUDA device is not {device}, where the model lies"
        structure = self._refused_structure()
        if structure:
            return structure
        weights = [slot.get() for slot in self._slots]
        if self._as_seen(weights):
            return ""
        for slot, weight, meta in zip(self._slots, weights, self._weight_metas, strict=True):
            if not is_plain(weight) or not meta.fits(weight):
                return f"'{slot.name}' is {describe(weight)}, captured was {describe(meta)}"
        self._seen = weights
        return ""

    def _values(self, leaves: Sequence[Any]) -> Sequence[Any]:
        with torch._C._AutoDispatchBelowAutograd():
            if self._autocast.dtype is None:
                return super()._values(leaves)
            with without_autocast():  # its casts are operators of the program
                return super()._values(leaves)

    def _bind(self, twin: nn.Module) -> None:
        super()._bind(twin)
        self._seen = []

    def _refused(self, leaves: Sequence[Any]) -> str:
        return (
            _refused_transform()
            or self._refused_leaf(leaves)
            or self.refused_state()
            or self._refused_gradient()
        )

    def _refused_gradient(self) -> str:
        """Of the weights that `refused_state` has just seen."""
        if torch.is_grad_enabled() and any(map(_requires_grad, self._seen)):
            return "a weight requires grad"
        return ""

    def _refused_leaf(self, leaves: Sequence[Any]) -> str:
        if len(leaves) != len(self._expected):
            return OTHER_CALL
        grad = torch.is_grad_enabled()
        for leaf, captured in zip(leaves, self._expected, strict=True):
            if not isinstance(captured, Expected):
                if not same_constant(leaf, captured):
                    return f"an argument is {describe(leaf)}, captured was {captured!r}"
            elif type(leaf) not in PLAIN or not captured.fits(leaf):
                return f"an input is {describe(leaf)}, captured was {describe(captured)}"
            elif grad and leaf.requires_grad:
                return "an input requires grad"
        return self._refused_sharing(leaves)

    def _as_seen(self, weights: list[Any]) -> bool:
        """The same objects, of the captured dtype: `.half()` changes a parameter in place, and
        may be called on a part of the module. `.to` of a device: the first one tells."""
        if len(weights) != len(self._seen) or not all(map(is_, weights, self._seen)):
            return False
        if [weight.dtype for weight in weights] != self._dtypes:
            return False
        return not weights or weights[0].device == self._weight_metas[0].device


def _refused_transform() -> str:
    """Kernels have neither a forward derivative nor a batching rule."""
    if torch._C._are_functorch_transforms_active():
        return "a transform of torch.func is running"
    # The level that `forward_ad.dual_level` has entered, -1 outside.
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation is on"
    return ""


_requires_grad = attrgetter("requires_grad")
