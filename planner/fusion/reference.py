"""The operators of a region as a module of the region's inputs, at the captured size or with other
sizes of the region's dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from planner.fusion.dimensions import RESHAPING
from planner.fusion.lowered import LoweredRegion
from planner.fusion.subgraph import extract
from planner.graph.view import op_name

Sizes = Mapping[int, int]
"""Dimensions of a region with the sizes that they have instead of the captured ones."""

LONGEST_TABLE = 512
"""Rows of a table that a check draws; no kernel knows how many there are."""
_SIZED = RESHAPING | {"aten.expand.default"}
_CAPTURED: Sizes = {}


def reference(lowered: LoweredRegion, sizes: Sizes = _CAPTURED) -> fx.GraphModule:
    """`module(*values of the inputs)` returns the values of the outputs.

    With `sizes`, whose dimensions are all in `free_dims`, these dimensions of the region have
    other sizes than captured. Views that need a certain layout of their operand copy it where it
    has another.
    """
    part = extract(lowered.nodes, lowered.inputs, lowered.outputs)
    for node in lowered.nodes:
        if op_name(node) in _SIZED:
            copy = part.copies[node]
            reshapes = op_name(node) in RESHAPING
            copy.target = torch.ops.aten.reshape.default if reshapes else copy.target
            copy.args = (copy.args[0], list(sizes_with(lowered, node, sizes)))
            copy.kwargs = {}
    part.module.recompile()
    return part.module


def takes_rows(lowered: LoweredRegion) -> bool:
    """Whether the region's first dimension may have another size than was captured."""
    return _outside_of_rows(lowered, 0) and _outermost(lowered, 0)


def free_dims(lowered: LoweredRegion) -> tuple[int, ...]:
    """The dimensions of the region that may have another size than was captured, outermost first:
    no row and no concatenation runs along them, and no operator or view says how long they are.
    """
    first = (0,) if takes_rows(lowered) else ()
    if any(not _any_size(node) for node in lowered.nodes):
        return first
    region = lowered.region
    windows = (item.window for item in region.inputs)
    held = {window.dim % len(region.shape) for window in windows if window} | region.cut
    inner = range(1, len(region.shape))
    return first + tuple(
        d
        for d in inner
        if _outside_of_rows(lowered, d) and d not in held and _outermost(lowered, d)
    )


def sizes_with(lowered: LoweredRegion, node: fx.Node, sizes: Sizes = _CAPTURED) -> tuple[int, ...]:
    """The node's sizes where these dimensions of the region have other sizes; of a table as many
    rows as a check draws.
    """
    value: Any = node.meta["val"]
    found = [int(n) for n in value.shape]
    dim = lowered.tables.get(node)
    if dim is not None and not lowered.places[node][dim]:
        found[dim] = min(found[dim], LONGEST_TABLE)
    for d, own in enumerate(lowered.places[node]):
        for place in own:
            if place in sizes:
                found[d] = found[d] // lowered.region.shape[place] * sizes[place]
    return tuple(found)


def _outside_of_rows(lowered: LoweredRegion, dim: int) -> bool:
    """Whether the dimension is none of a row's, and of more than one element."""
    region = lowered.region
    return dim < len(region.shape) - region.row_rank and region.shape[dim] > 1


def _outermost(lowered: LoweredRegion, dim: int) -> bool:
    """Whether the views that bring inputs to the region leave the dimension's size open: one that
    divides a tensor's dimension names all sizes but the first.
    """
    dims = [own for node in lowered.inputs for own in lowered.places[node]]
    return not any(dim in own[1:] for own in dims)


def _any_size(node: fx.Node) -> bool:
    """Whether the operator takes tensors of any sizes, as pointwise ones do, reductions, and views
    that are told sizes here.
    """
    if op_name(node) in _SIZED or not isinstance(node.target, torch._ops.OpOverload):
        return True
    names = {argument.name for argument in node.target._schema.arguments}
    return not names & {"size", "num_groups", "start"}
