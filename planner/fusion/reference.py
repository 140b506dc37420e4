"""The operators of a region as a module of the region's inputs, at the captured size or with other
leading sizes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from planner.fusion.dimensions import RESHAPING
from planner.fusion.lowered import LoweredRegion
from planner.fusion.subgraph import extract
from planner.graph.view import op_name

LONGEST_TABLE = 512
"""Rows of a table that a check draws; no kernel knows how many there are."""
_SIZED = RESHAPING | {"aten.expand.default"}


def reference(lowered: LoweredRegion, leading: int | None = None) -> fx.GraphModule:
    """`module(*values of the inputs)` returns the values of the outputs.

    With `leading` the region's first dimension has that size. Views that need a certain layout of
    their operand copy it where it has another.
    """
    part = extract(lowered.nodes, lowered.inputs, lowered.outputs)
    for node in lowered.nodes:
        if op_name(node) in _SIZED:
            copy = part.copies[node]
            reshapes = op_name(node) in RESHAPING
            copy.target = torch.ops.aten.reshape.default if reshapes else copy.target
            copy.args = (copy.args[0], list(sizes_with(lowered, node, leading)))
            copy.kwargs = {}
    part.module.recompile()
    return part.module


def takes_rows(lowered: LoweredRegion) -> bool:
    """Whether the region's first dimension may have another size than was captured."""
    region = lowered.region
    free = len(region.shape) > region.row_rank and region.shape[0] > 1
    dims = [own for node in lowered.inputs for own in lowered.places[node]]
    return free and not any(0 in own[1:] for own in dims)


def sizes_with(lowered: LoweredRegion, node: fx.Node, leading: int | None) -> tuple[int, ...]:
    """The node's sizes where the region's first dimension has the size `leading`; of a table as
    many rows as a check draws.
    """
    value: Any = node.meta["val"]
    sizes = [int(n) for n in value.shape]
    dim = lowered.tables.get(node)
    if dim is not None and not lowered.places[node][dim]:
        sizes[dim] = min(sizes[dim], LONGEST_TABLE)
    if leading is None or not takes_rows(lowered):
        return tuple(sizes)
    captured = lowered.region.shape[0]
    pairs = zip(sizes, lowered.places[node], strict=True)
    return tuple(size // captured * leading if 0 in own else size for size, own in pairs)
