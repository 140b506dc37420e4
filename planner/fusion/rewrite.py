"""Replaces the nodes of a region by one call of its operator, and keeps the graph in order."""

from __future__ import annotations

import heapq
import itertools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from planner.fusion.lowered import LoweredRegion
from planner.fusion.placing import Step
from planner.fusion.recompute import COPY, merge_copies
from planner.graph.randomness import drawing_nodes
from planner.passes.composites import PART
from planner.passes.linear_bias import SPLIT


def replace_regions(
    graph: fx.Graph, regions: Sequence[tuple[LoweredRegion, Any]]
) -> tuple[fx.Node, ...]:
    """Put one call of its operator in the place of each region's nodes; returns the calls. Copies
    that were made for regions and that none took are computed once again.
    """
    stands_for: dict[fx.Node, fx.Node] = {}
    calls: list[fx.Node] = []
    for lowered, overload in regions:
        inputs = tuple(stands_for.get(node, node) for node in lowered.inputs)
        call, results = _replace(graph, lowered, inputs, overload)
        stands_for.update(results)
        calls.append(call)
    merge_copies(graph)
    sort(graph)
    return tuple(calls)


def _replace(
    graph: fx.Graph, lowered: LoweredRegion, inputs: tuple[fx.Node, ...], overload: Any
) -> tuple[fx.Node, dict[fx.Node, fx.Node]]:
    last = lowered.nodes[-1]
    with graph.inserting_before(last.next):
        arguments = lowered.arguments(inputs, _view)
        call = graph.call_function(overload, arguments)
        call.meta = {**_meta(last), "val": _value(lowered, call)}
        results = lowered.returned(_parts(graph, call), _view)
    for node, result in zip(lowered.outputs, results, strict=True):
        result.meta = {**result.meta, **_meta(node), "val": node.meta["val"]}
        node.replace_all_uses_with(result, delete_user_cb=lambda user: _stays(user, lowered))
    for node in reversed(lowered.nodes):
        if node not in lowered.kept:
            graph.erase_node(node)
    return call, dict(zip(lowered.outputs, results, strict=True))


def _stays(user: fx.Node, lowered: LoweredRegion) -> bool:
    return user not in lowered.nodes or user in lowered.kept


def sort(graph: fx.Graph) -> None:
    """Bring the nodes into an order in which each follows what it reads, as near to the old as
    can be. Operators that draw random numbers keep their order among themselves.
    """
    position = {node: index for index, node in enumerate(graph.nodes)}
    next_draw = dict(itertools.pairwise(drawing_nodes(graph)))
    waiting = {node: len(node.all_input_nodes) for node in position}
    for node in next_draw.values():
        waiting[node] += 1
    ready = [index for node, index in position.items() if not waiting[node]]
    heapq.heapify(ready)
    nodes = list(position)
    ordered: list[fx.Node] = []
    while ready:
        node = nodes[heapq.heappop(ready)]
        ordered.append(node)
        later = [*node.users, next_draw[node]] if node in next_draw else node.users
        for after in later:
            waiting[after] -= 1
            if not waiting[after]:
                heapq.heappush(ready, position[after])
    for before, following in itertools.pairwise(ordered):
        if before.next is not following:
            before.append(following)


def _meta(node: fx.Node) -> dict[str, Any]:
    """A kernel that ends with a linear's bias is not that bias, nor with a copy that copy, nor with
    a part that part.
    """
    return {key: value for key, value in node.meta.items() if key not in (SPLIT, COPY, PART)}


def _view(source: fx.Node, step: Step) -> fx.Node:
    """The view as a node of the graph."""
    overload, arguments = step
    node = source.graph.call_function(overload, (source, *arguments))
    sizes = fx.map_arg(arguments, lambda size: size.meta["val"])
    node.meta = {**_meta(source), "val": overload(source.meta["val"], *sizes)}
    return node


def _value(lowered: LoweredRegion, call: fx.Node) -> Any:
    """What the kernel returns, in the region's dimensions; where their sizes are open, those that
    follow from its arguments.
    """
    if lowered.region.open_dims and any(lowered.results):
        assert callable(call.target)
        return call.target(*(source.meta["val"] for source in call.args))  # type: ignore[union-attr]
    values = []
    for node, output, steps in zip(
        lowered.outputs, lowered.region.outputs, lowered.results, strict=True
    ):
        own = node.meta["val"]
        values.append(own.new_empty_strided(output.shape, output.stride) if steps else own)
    return values[0] if len(values) == 1 else tuple(values)


def _parts(graph: fx.Graph, call: fx.Node) -> fx.Node | list[fx.Node]:
    """The call, or each of the tensors that it returns."""
    values = call.meta["val"]
    if isinstance(values, torch.Tensor):
        return call
    items = []
    for index, value in enumerate(values):
        item = graph.call_function(operator.getitem, (call, index))
        item.meta = {**_meta(call), "val": value}
        items.append(item)
    return items
