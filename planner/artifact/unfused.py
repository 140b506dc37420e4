"""The packaged program without kernels: what it accepts, said by name, and where it runs."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from planner.artifact.errors import OutsideRange
from planner.fusion.call import same_constant
from planner.fusion.expected import PLAIN, Expected, describe, dtype_name
from planner.fusion.runnable import OTHER_CALL, RunnableProgram
from planner.graph.autocast import NO_AUTOCAST, refused_autocast, without_autocast

_ADVICE = "Fuse the original model for such calls and save that."


class UnfusedProgram(RunnableProgram):
    """Takes the captured shapes and dtypes in any layout, on any device, with or without grad.

    Another dtype is refused even where every operator would take it: the capture has dropped the
    casts that did nothing for its own dtype.
    """

    def __init__(self, twin: nn.Module, program: ExportedProgram) -> None:
        super().__init__(twin, program)
        inputs = [s for s in self._signature.input_specs if s.kind is InputKind.USER_INPUT]
        self._names = [str(spec.arg.name) for spec in inputs]
        self._elsewhere: dict[torch.device, fx.GraphModule] = {}

    def leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The call's leaves in the program's order.

        Raises `OutsideRange`, which names the input and its dimension, or the weight.
        """
        leaves = self._form.leaves(args, kwargs)
        if leaves is None or len(leaves) != len(self._expected):
            raise OutsideRange(f"{OTHER_CALL}. {_ADVICE}")
        for name, leaf, captured in zip(self._names, leaves, self._expected, strict=True):
            if isinstance(captured, Expected):
                _require(f"input '{name}'", leaf, captured)
            elif not same_constant(leaf, captured):
                said = f"input '{name}' is {describe(leaf)}, captured was {captured!r}"
                raise OutsideRange(f"{said}. {_ADVICE}")
        refused = (
            self._refused_sharing(leaves) or self._refused_structure() or self._refused_autocast()
        )
        if refused:
            raise OutsideRange(f"{refused}; the artifact holds no program for that. {_ADVICE}")
        for slot, captured in zip(self._slots, self._weight_metas, strict=True):
            _require(f"weight '{slot.name}'", slot.get(), captured)
        return leaves

    def _refused_autocast(self) -> str:
        """Why the program cannot stand for the original under the autocast that is on now. Without
        casts of its own it takes those that autocast makes; with some, no others.
        """
        if self._autocast == NO_AUTOCAST:
            return ""
        return refused_autocast(self._autocast, self._device.type)

    def _values(self, leaves: Sequence[Any]) -> Sequence[Any]:
        if self._autocast == NO_AUTOCAST:
            return super()._values(leaves)
        with without_autocast():
            return super()._values(leaves)

    def _graph(self, leaves: Sequence[Any]) -> fx.GraphModule:
        device = _device_of([*leaves, *(slot.get() for slot in self._slots)])
        if device is None or device == self._device:
            return self._module
        if device not in self._elsewhere:
            self._elsewhere[device] = _moved(self._module, self._device, device)
        return self._elsewhere[device]


def _require(what: str, value: Any, captured: Expected) -> None:
    """Raises `OutsideRange` where the value's dtype or a size is not the captured one."""
    if type(value) not in PLAIN or value.layout is not torch.strided:
        said = f"{what} is {describe(value)}, captured was {describe(captured)}"
    elif value.dtype is not captured.dtype:
        said = (
            f"{what} is {dtype_name(value.dtype)}, captured was {dtype_name(captured.dtype)}; "
            "cast it"
        )
    elif value.dim() != len(captured.shape):
        said = f"{what} has {value.dim()} dimensions, captured were {len(captured.shape)}"
    else:
        sizes = enumerate(zip(value.shape, captured.shape, strict=True))
        other = next(((d, own, size) for d, (own, size) in sizes if own != size), None)
        if other is None:
            return
        dimension, own, size = other
        said = f"dimension {dimension} of {what} is {own}, the artifact is exported for {size}"
    raise OutsideRange(f"{said}. {_ADVICE}")


def _device_of(values: Sequence[Any]) -> torch.device | None:
    return next((value.device for value in values if isinstance(value, Tensor)), None)


def _moved(module: fx.GraphModule, old: torch.device, new: torch.device) -> fx.GraphModule:
    """A copy that makes its tensors on `new` where the captured program made them on `old`."""

    def replaced(value: Any) -> Any:
        return new if isinstance(value, torch.device) and value.type == old.type else value

    moved: fx.GraphModule = copy.deepcopy(module)
    for part in moved.modules():
        if isinstance(part, fx.GraphModule):
            for node in part.graph.nodes:
                node.args = fx.node.map_aggregate(node.args, replaced)
                node.kwargs = fx.node.map_aggregate(node.kwargs, replaced)
            part.recompile()
    return moved
