"""A function as a program, and a pass applied to it with everything checked that always holds."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from planner.graph.export import capture
from planner.passes.runner import Pass, run_passes


class Module(nn.Module):
    """Runs a function of tensors; tensors in `weights` are its parameters and buffers."""

    def __init__(self, function: Callable[..., Any], weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.function = function
        for name, value in weights.items():
            if isinstance(value, nn.Parameter):
                self.register_parameter(name, value)
            else:
                self.register_buffer(name, value)

    def forward(self, *args: Tensor) -> Any:
        weights = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        return self.function(*args, **weights)


@dataclass
class Exported:
    """An exported function with its example inputs, before normalization."""

    module: nn.Module
    args: tuple[Tensor, ...]
    program: ExportedProgram

    def apply(self, *passes: Pass) -> tuple[str, ...]:
        """Run the passes; the program stays valid and bit-equal to eager. Returns all notes."""
        records = run_passes(self.program, [(p.__name__, p) for p in passes])
        self.program.validate()
        self.require_equal(*self.args)
        return tuple(note for record in records for note in record.notes)

    def require_equal(self, *args: Tensor) -> None:
        """Values, dtypes, strides, and which results share storage with one another or an input."""
        given, theirs = _copies(args), _copies(args)
        with torch.no_grad():
            actual = pytree.tree_leaves(self.program.module()(*given))
            expected = pytree.tree_leaves(copy.deepcopy(self.module)(*theirs))
        for left, right in zip(actual, expected, strict=True):
            torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)
            assert left.stride() == right.stride()
        assert _sharing((*actual, *given)) == _sharing((*expected, *theirs))

    def ops(self) -> list[str]:
        """Names of the operators, without namespace."""
        return [
            str(node.target).removeprefix("aten.")
            for node in self.program.graph.nodes
            if node.op == "call_function"
        ]

    def node(self, op: str) -> fx.Node:
        return next(n for n in self.program.graph.nodes if str(n.target) == f"aten.{op}")


def _copies(args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return copy.deepcopy(args)


def _sharing(tensors: tuple[Tensor, ...]) -> list[list[bool]]:
    storages = [tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()]
    return [[left == right for right in storages] for left in storages]


Export = Callable[..., Exported]


@pytest.fixture
def export() -> Export:
    """`export(function, *args, **weights)` as a program that no pass has touched."""

    def make(
        function: Callable[..., Any],
        *args: Tensor,
        dynamic_shapes: Any = None,
        **weights: Tensor,
    ) -> Exported:
        module = Module(function, weights).eval()
        return Exported(module, args, capture(module, args, None, dynamic_shapes).program)

    return make
