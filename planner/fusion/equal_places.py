"""When two places are judged once: what of a candidate its checks and its race depend on."""

from __future__ import annotations

from typing import Any

from planner.fusion.candidate import Candidate
from planner.fusion.recompute import COPY
from planner.fusion.spent import spent_input
from planner.passes.composites import composites_in, is_whole


def kernel_key(way: Candidate, device: str) -> tuple[str, int | None]:
    """The kernel, and the input it writes over, which it may on CPU alone."""
    spent = spent_input(way.lowered) if device.startswith("cpu") else None
    return way.source.file_name, spent


def around_key(way: Candidate) -> tuple[Any, ...]:
    """What else is timed: the shapes and dtypes of the products beside the kernel, which of its
    operators had been stored before, and which run as one that was taken apart.
    """
    values = [node.meta["val"] for linear in way.linears for node in linear.all_input_nodes]
    copies = tuple(COPY in node.meta for node in way.lowered.nodes)
    whole = tuple(
        (item.target, len(parts))
        for item, parts in composites_in(way.lowered.nodes)
        if is_whole(item, parts)
    )
    return (copies, whole, *((tuple(value.shape), value.dtype) for value in values))
