"""The OpGraph of a captured program: torch's graph read once into plain data."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from planner.graph.op_graph import OpGraph, OpNode, TensorMeta
from planner.graph.source import source_line

CASTS = frozenset(
    (
        "aten._to_copy.default",
        "aten.to.dtype",
        "aten.type_as.default",
        "prims.convert_element_type.default",
    )
)
"""Operators by which a user brings a tensor to another dtype."""


def op_graph(program: ExportedProgram) -> OpGraph:
    """Every operator call of the program in execution order. Symbolic sizes count as their
    example.
    """
    return OpGraph(
        tuple(op_node(node) for node in program.graph.nodes if node.op == "call_function")
    )


def op_node(node: fx.Node) -> OpNode:
    """One operator call as plain data."""
    module_path, module_type = module_of(node)
    tensors: list[TensorMeta] = []
    args = tuple(_plain(arg, tensors) for arg in node.args)
    kwargs = {name: _plain(arg, tensors) for name, arg in node.kwargs.items()}
    return OpNode(
        name=node.name,
        op=op_name(node),
        args=args,
        kwargs=kwargs,
        inputs=tuple(tensors),
        outputs=_outputs(node.meta.get("val")),
        module_path=module_path,
        module_type=module_type,
        source=source_line(node.meta.get("stack_trace")),
        users=tuple(user.name for user in node.users),
    )


def op_name(node: fx.Node) -> str:
    """ "aten.gelu.default"; for a higher-order operator or Python function its plain name."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    return getattr(target, "__name__", str(target))


def module_of(node: fx.Node) -> tuple[str, str]:
    """Fully qualified name and class name of the innermost module a node belongs to."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    if not stack:
        return "", ""
    path, cls = stack[-1]
    return path, str(getattr(cls, "__name__", cls)).rsplit(".", 1)[-1]


def tensor_meta(value: torch.Tensor) -> TensorMeta:
    """Shape, dtype, strides and device of a (fake) tensor as plain data."""
    return TensorMeta(
        tuple(_size(n) for n in value.shape),
        str(value.dtype).removeprefix("torch."),
        tuple(_size(n) for n in value.stride()),
        str(value.device),
    )


def _size(n: Any) -> int:
    if isinstance(n, int):
        return n
    hint = n.node.hint
    return int(hint) if hint is not None else 1


def _plain(value: Any, tensors: list[TensorMeta]) -> object:
    if isinstance(value, fx.Node):
        held = value.meta.get("val")
        if isinstance(held, torch.Tensor):
            tensors.append(tensor_meta(held))
            return tensors[-1]
        return _size(held) if isinstance(held, int | torch.SymInt) else value.name
    if isinstance(value, list | tuple):
        return tuple(_plain(item, tensors) for item in value)
    if isinstance(value, slice):
        return (value.start, value.stop, value.step)
    if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
        return str(value).removeprefix("torch.")
    return value


def _outputs(value: Any) -> tuple[TensorMeta, ...]:
    values = value if isinstance(value, list | tuple) else (value,)
    return tuple(tensor_meta(item) for item in values if isinstance(item, torch.Tensor))
