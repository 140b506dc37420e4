"""A set of graph nodes becomes a region: inputs aligned, statements in order, outputs where
others read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fusion_kernels.builder import Builder, NotLowered
from fusion_kernels.ir import Output, Region, Window
from fusion_kernels.lowering import LOWERINGS
from fusion_kernels.reductions import REDUCTIONS
from fusion_kernels.rule import Match
from planner.fusion.comparisons import compared_dtype, is_rounded, rounded_number
from planner.fusion.precision import unrounded
from planner.fusion.windows import CAT, Windows, operand_windows, windows_of
from planner.graph.view import op_name

Hint = Callable[[fx.Node], str]
_Place = tuple[fx.Node, Window | None]


@dataclass(frozen=True, slots=True)
class LoweredRegion:
    """A region with the graph nodes that feed it (in the region's input order) and those it
    replaces. `unrounded` are casts among these that it leaves out.
    """

    region: Region
    inputs: tuple[fx.Node, ...]
    nodes: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    unrounded: tuple[fx.Node, ...] = ()


def lower(nodes: Sequence[fx.Node], name: str, hint: Hint) -> LoweredRegion:
    """The region that computes `nodes` (in graph order); values read outside become outputs.

    Raises `NotLowered` with the reason when a node has no expression, or when an output is neither
    as large as what the region iterates over nor one value a row.
    """
    inside = set(nodes)
    windows = windows_of(nodes)
    shape = _region_shape([node for node in nodes if None in windows[node]])
    builder = Builder()
    names: dict[_Place, str] = {}
    for source, window in _inputs(nodes, windows):
        names[source, window] = _declare(builder, source, shape, hint, window)
    if _broadcast(_placed_shape(*place, shape) for place in names) != shape:
        raise NotLowered("its shape is not the one that its inputs broadcast to")
    left_out = unrounded(nodes)
    for node in nodes:
        for window in windows[node]:
            if node in left_out:
                names[node, window] = _operand(node.args[0], names, window)
            else:
                names[node, window] = _lower_node(builder, node, names, shape, window)
    results = tuple(node for node in nodes if any(user not in inside for user in node.users))
    rank = builder.row_rank
    for node in results:
        if None not in windows[node]:
            raise NotLowered(f"{node.name} is a piece of a concatenation and read elsewhere")
    outputs = tuple(_output(node, names[node, None], shape, rank) for node in results)
    region = builder.finish(name, shape, outputs)
    by_name = {name: node for (node, _), name in names.items() if node not in inside}
    feeding = tuple(by_name[item.name] for item in region.inputs)
    return LoweredRegion(region, feeding, tuple(nodes), results, left_out)


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


def _inputs(nodes: Sequence[fx.Node], windows: Windows) -> list[_Place]:
    """What is read from outside, and in which windows."""
    found: dict[_Place, None] = {}
    for node in nodes:
        for window in windows[node]:
            for source, own in operand_windows(node, window):
                if source not in windows:
                    found[source, own] = None
    twice = [node for node, count in Counter(node for node, _ in found).items() if count > 1]
    if twice:
        raise NotLowered(f"{twice[0].name} is read in several pieces of a concatenation")
    return list(found)


def _declare(
    builder: Builder, node: fx.Node, shape: tuple[int, ...], hint: Hint, window: Window | None
) -> str:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        raise NotLowered(f"{node.name} is a size known only at run time")
    own = _shape(node)
    missing = len(shape) - len(own)
    stride = tuple(0 if n == 1 else int(s) for n, s in zip(own, value.stride(), strict=True))
    dtype = str(value.dtype).removeprefix("torch.")
    sizes, steps = (1,) * missing + own, (0,) * missing + stride
    return builder.input(hint(node), dtype, sizes, steps, len(own), window)


def _region_shape(nodes: Sequence[fx.Node]) -> tuple[int, ...]:
    """What the region runs over: its nodes' shapes and those of what they reduce, broadcast."""
    shapes = [_shape(node) for node in nodes]
    reduced = [node.args[0] for node in nodes if op_name(node) in REDUCTIONS]
    shapes += [_shape(source) for source in reduced if isinstance(source, fx.Node)]
    return _broadcast(shapes)


def _lower_node(
    builder: Builder,
    node: fx.Node,
    names: Mapping[_Place, str],
    shape: tuple[int, ...],
    window: Window | None,
) -> str:
    op = op_name(node)
    if op not in LOWERINGS and op != CAT:
        raise NotLowered(f"{op} has no kernel expression")
    value = node.meta["val"]
    dtype = str(value.dtype).removeprefix("torch.")
    first = node.args[0] if node.args else None
    operand = _shape(first) if isinstance(first, fx.Node) else ()
    builder.at(node.name, str(node.target).split(".")[1].strip("_"), dtype, operand)
    if op == CAT:
        return builder.name_result(_concatenate(builder, node, names, window, len(shape)))
    if window is not None and op in REDUCTIONS:
        raise NotLowered("a reduction within a piece of a concatenation")
    args = _compared(builder, node, [_operand(arg, names, window) for arg in node.args])
    kwargs = {key: _operand(arg, names, window) for key, arg in node.kwargs.items()}
    result = LOWERINGS[op](builder, *args, **kwargs)
    rank = builder.row_rank
    if op in REDUCTIONS and operand[-rank:] != shape[len(shape) - rank :]:
        raise NotLowered(f"a row of {operand[-rank:]} in a region over {shape}")
    return builder.name_result(result)


def _compared(builder: Builder, node: fx.Node, operands: list[Any]) -> list[Any]:
    """The operands of a comparison in 16 bits as eager rounds them; all others as they are."""
    dtype = compared_dtype(node)
    if dtype is None or dtype.itemsize > 2:
        return operands
    pairs = zip(node.args, operands, strict=True)
    return [
        _rounded(builder, value, dtype) if is_rounded(arg, dtype) else value for arg, value in pairs
    ]


def _rounded(builder: Builder, value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, str):
        return builder.cast(value, str(dtype).removeprefix("torch."))
    return rounded_number(value, dtype)


def _concatenate(
    builder: Builder,
    node: fx.Node,
    names: Mapping[_Place, str],
    window: Window | None,
    rank: int,
) -> str:
    found = operand_windows(node, window)
    first = found[0][1]
    assert first is not None
    if rank + first.dim == 0:
        raise NotLowered("a concatenation along the leading dimension")
    pieces = [(names[source, own], own.stop) for source, own in found if own is not None]
    return builder.cat(first.dim, first.start, pieces)


def _operand(value: Any, names: Mapping[_Place, str], window: Window | None) -> Any:
    if isinstance(value, fx.Node):
        return names[value, window] if (value, window) in names else names[value, None]
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return value


def _output(node: fx.Node, value: str, shape: tuple[int, ...], row_rank: int) -> Output:
    """As large as the region, or one value a row."""
    own = _shape(node)
    of_row = shape[: len(shape) - row_rank] + (1,) * row_rank
    if own not in (shape, of_row):
        raise NotLowered(
            f"{node.name} of shape {own} is read elsewhere, the region runs over {shape}"
        )
    tensor = node.meta["val"]
    stride = tuple(int(s) for s in tensor.stride())
    return Output(value, str(tensor.dtype).removeprefix("torch."), own, stride)


def _placed_shape(node: fx.Node, window: Window | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The node's shape; that of a piece is as long as the region where it is cut."""
    own = list(_shape(node))
    if window is not None:
        own[window.dim] = shape[window.dim]
    return tuple(own)


def _broadcast(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    listed = list(shapes)
    try:
        return tuple(torch.broadcast_shapes(*listed))
    except RuntimeError as error:
        raise NotLowered(f"shapes that do not broadcast: {sorted(set(listed))}") from error


def _shape(node: fx.Node) -> tuple[int, ...]:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        raise NotLowered(f"{node.name} does not return one tensor")
    if not all(isinstance(n, int) for n in value.shape):
        raise NotLowered(f"{node.name} has a dynamic shape")
    return tuple(value.shape)
