"""A set of graph nodes becomes a region: inputs aligned, statements in order, outputs where
others read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fusion_kernels.builder import Builder, NotLowered
from fusion_kernels.ir import Output, Region
from fusion_kernels.lowering import LOWERINGS
from fusion_kernels.rule import Match
from planner.graph.view import op_name

Hint = Callable[[fx.Node], str]


@dataclass(frozen=True, slots=True)
class LoweredRegion:
    """A region with the graph nodes that feed it (in the region's input order) and those it
    replaces.
    """

    region: Region
    inputs: tuple[fx.Node, ...]
    nodes: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]


def lower(nodes: Sequence[fx.Node], name: str, hint: Hint) -> LoweredRegion:
    """The region that computes `nodes` (in graph order); values read outside become outputs.

    Raises `NotLowered` with the reason when a node has no expression, or when an output is smaller
    than what the region iterates over.
    """
    inside = set(nodes)
    shape = _broadcast(nodes)
    builder = Builder()
    names: dict[fx.Node, str] = {}
    for node in _inputs(nodes, inside):
        names[node] = _declare(builder, node, shape, hint)
    if _broadcast(names) != shape:
        raise NotLowered("its shape is not the one that its inputs broadcast to")
    for node in nodes:
        names[node] = _lower_node(builder, node, names)
    results = tuple(node for node in nodes if any(user not in inside for user in node.users))
    outputs = tuple(_output(node, names[node], shape) for node in results)
    region = builder.finish(name, shape, outputs)
    by_name = {name: node for node, name in names.items() if node not in inside}
    feeding = tuple(by_name[item.name] for item in region.inputs)
    return LoweredRegion(region, feeding, tuple(nodes), results)


def input_hint(parameters: Mapping[str, str]) -> Hint:
    """Names for region inputs: a parameter's own last name ("weight"), else the producing
    operator's.
    """

    def hint(node: fx.Node) -> str:
        if node.name in parameters:
            return parameters[node.name].rsplit(".", 1)[-1]
        return node.name

    return hint


def bound_hint(match: Match | None, fallback: Hint) -> Hint:
    """The rule's own parameter names for what its match binds, else `fallback`."""
    if match is None:
        return fallback
    names = {value: name for name, value in match.bindings.items() if isinstance(value, fx.Node)}
    return lambda node: names.get(node) or fallback(node)


def _inputs(nodes: Sequence[fx.Node], inside: set[fx.Node]) -> list[fx.Node]:
    found: dict[fx.Node, None] = {}
    for node in nodes:
        found.update((source, None) for source in node.all_input_nodes if source not in inside)
    return list(found)


def _declare(builder: Builder, node: fx.Node, shape: tuple[int, ...], hint: Hint) -> str:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        raise NotLowered(f"{node.name} is a size known only at run time")
    own = _shape(node)
    missing = len(shape) - len(own)
    stride = tuple(0 if n == 1 else int(s) for n, s in zip(own, value.stride(), strict=True))
    dtype = str(value.dtype).removeprefix("torch.")
    padded = ((1,) * missing + own, (0,) * missing + stride)
    return builder.input(hint(node), dtype, *padded, rank=len(own))


def _lower_node(builder: Builder, node: fx.Node, names: Mapping[fx.Node, str]) -> str:
    lowering = LOWERINGS.get(op_name(node))
    if lowering is None:
        raise NotLowered(f"{op_name(node)} has no kernel expression")
    value = node.meta["val"]
    dtype = str(value.dtype).removeprefix("torch.")
    builder.at(node.name, str(node.target).split(".")[1].strip("_"), dtype)
    args = [_operand(arg, names) for arg in node.args]
    kwargs = {key: _operand(arg, names) for key, arg in node.kwargs.items()}
    return builder.name_result(lowering(builder, *args, **kwargs))


def _operand(value: Any, names: Mapping[fx.Node, str]) -> Any:
    if isinstance(value, fx.Node):
        return names[value]
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return value


def _output(node: fx.Node, value: str, shape: tuple[int, ...]) -> Output:
    own = _shape(node)
    if own != shape:
        raise NotLowered(
            f"{node.name} of shape {own} is read elsewhere, the region runs over {shape}"
        )
    tensor = node.meta["val"]
    stride = tuple(int(s) for s in tensor.stride())
    return Output(value, str(tensor.dtype).removeprefix("torch."), stride)


def _broadcast(nodes: Iterable[fx.Node]) -> tuple[int, ...]:
    shapes = [_shape(node) for node in nodes]
    try:
        return tuple(torch.broadcast_shapes(*shapes))
    except RuntimeError as error:
        raise NotLowered(f"shapes that do not broadcast: {shapes}") from error


def _shape(node: fx.Node) -> tuple[int, ...]:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        raise NotLowered(f"{node.name} does not return one tensor")
    if not all(isinstance(n, int) for n in value.shape):
        raise NotLowered(f"{node.name} has a dynamic shape")
    return tuple(value.shape)
