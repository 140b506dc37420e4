"""Replaces the nodes of a region by one call of its operator, and keeps the graph in order."""

from __future__ import annotations

import heapq
import itertools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from planner.fusion.lower import LoweredRegion
from planner.fusion.recompute import COPY, merge_copies
from planner.graph.randomness import drawing_nodes
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
    with graph.inserting_after(last):
        call = graph.call_function(overload, inputs)
    call.meta = {**_meta(last), "val": _value(lowered)}
    results = [call] if len(lowered.outputs) == 1 else _unpack(graph, call, lowered)
    for node, result in zip(lowered.outputs, results, strict=True):
        node.replace_all_uses_with(result, delete_user_cb=lambda user: user not in lowered.nodes)
    for node in reversed(lowered.nodes):
        graph.erase_node(node)
    return call, dict(zip(lowered.outputs, results, strict=True))


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
    """A kernel that ends with a linear's bias is not that bias, nor with a copy that copy."""
    return {key: value for key, value in node.meta.items() if key not in (SPLIT, COPY)}


def _value(lowered: LoweredRegion) -> Any:
    values = tuple(node.meta["val"] for node in lowered.outputs)
    return values[0] if len(values) == 1 else values


def _unpack(graph: fx.Graph, call: fx.Node, lowered: LoweredRegion) -> list[fx.Node]:
    items: list[fx.Node] = []
    for index, node in enumerate(lowered.outputs):
        with graph.inserting_after(items[-1] if items else call):
            item = graph.call_function(operator.getitem, (call, index))
        item.meta = _meta(node)
        assert isinstance(item.meta["val"], torch.Tensor)
        items.append(item)
    return items
