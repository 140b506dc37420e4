"""Tensors of one known number, as the numbers they hold.

A forward that calls `torch.tensor(2.0)` makes such a tensor on the CPU, whatever device it computes
on, and a scale worked out of it is a chain of operators in every call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from fusion_kernels.lowering import POINTWISE
from planner.counted import counted
from planner.graph.view import op_name

_MADE_IN_THE_FORWARD = "lifted_tensor"
"""What torch.export calls a constant that no attribute of a module holds."""


def write_numbers(program: ExportedProgram) -> tuple[str, ...]:
    """Give pointwise operators the number itself where it is known, as long as the result's dtype
    stays what it was.
    """
    known = _known(program)
    count = 0
    for node in program.graph.nodes:
        if node in known or op_name(node) not in POINTWISE or not node.args:
            continue
        first, *others = node.args
        # An operator is called on a tensor; what comes after may be a number.
        changed = (first, *(known.get(arg, arg) if _is_node(arg) else arg for arg in others))
        if changed != node.args and _same_dtype(node, changed):
            node.args = changed
            count += 1
    return (f"{counted(count, 'operator')} given a number that is known",) if count else ()


def _known(program: ExportedProgram) -> dict[fx.Node, float | int | bool]:
    """The numbers of all tensors without dimensions that are made of constants alone."""
    constants = program.graph_signature.inputs_to_lifted_tensor_constants
    values: dict[fx.Node, Tensor] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            name = constants.get(node.name, "")
            value = program.constants.get(name)
            made = name.rsplit(".", 1)[-1].startswith(_MADE_IN_THE_FORWARD)
            if made and isinstance(value, Tensor) and value.dim() == 0:
                values[node] = value
        elif node.all_input_nodes and all(source in values for source in node.all_input_nodes):
            held = node.meta.get("val")
            if op_name(node) in POINTWISE and isinstance(held, Tensor) and held.dim() == 0:
                values[node] = _computed(node, values)
    return {node: value.item() for node, value in values.items() if not value.is_complex()}


def _computed(node: fx.Node, values: dict[fx.Node, Tensor]) -> Tensor:
    target: Any = node.target
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda source: values[source])
    with torch.no_grad():
        result: Tensor = target(*args, **kwargs)
    return result


def _is_node(value: object) -> bool:
    return isinstance(value, fx.Node)


def _same_dtype(node: fx.Node, args: tuple[Any, ...]) -> bool:
    target: Any = node.target
    given, kwargs = fx.map_arg((args, dict(node.kwargs)), lambda source: source.meta["val"])
    own = node.meta["val"]
    try:
        result = target(*given, **kwargs)
    except (TypeError, RuntimeError):
        return False
    same = isinstance(result, Tensor) and result.dtype == own.dtype
    return same and (result.shape, result.device) == (own.shape, own.device)
