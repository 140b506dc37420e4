"""Which input of a region its kernel will write over, told before the graph is rewritten."""

from __future__ import annotations

from torch import Tensor, fx

from planner.fusion.lowered import LoweredRegion
from planner.passes.linear_bias import SPLIT
from planner.passes.reuse_buffers import FRESH


def spent_input(lowered: LoweredRegion) -> int | None:
    """The position of the input that `reuse_buffers` will find on CPU, None when it finds none.

    A region is verified in the form it runs in, so this has to foresee what the pass does once
    the region is one call and the biases are back in their linears.
    """
    region, inside = lowered.region, set(lowered.nodes)
    if len(region.outputs) != 1 or region.row_rank or not lowered.as_they_lie:
        return None
    result = lowered.outputs[0].meta["val"]
    for index, source in enumerate(lowered.inputs):
        if _fresh(source) and inside.issuperset(source.users) and _alike(source, result):
            return index
    return None


def _fresh(source: fx.Node) -> bool:
    return source.target in FRESH or SPLIT in source.meta


def _alike(source: fx.Node, result: Tensor) -> bool:
    own = source.meta["val"]
    return (
        isinstance(own, Tensor)
        and (own.shape, own.dtype, own.device) == (result.shape, result.dtype, result.device)
        and own.is_contiguous()
        and result.is_contiguous()
    )
