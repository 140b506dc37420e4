"""Inputs for a part of a graph, drawn in the layout that its tensors have there."""

from __future__ import annotations

from typing import Any

import torch

from fusion_kernels.inputs import CASES, InputSpec, draw_case
from planner.fusion.lookups import bound_beyond
from planner.fusion.subgraph import Subgraph


def inputs_of(subgraph: Subgraph, device: str, seed: int) -> tuple[torch.Tensor, ...]:
    """A tensor for each input of `subgraph`; indices stay within the tables they look up."""
    values = [node.meta["val"] for node in subgraph.inputs]
    bounds = [bound_beyond(node) for node in subgraph.inputs]
    specs = [InputSpec(tuple(v.shape), v.dtype, b) for v, b in zip(values, bounds, strict=True)]
    drawn = draw_case(specs, CASES[0], seed, device=device)
    return tuple(_as_strided(tensor, value) for tensor, value in zip(drawn, values, strict=True))


def _as_strided(tensor: torch.Tensor, like: Any) -> torch.Tensor:
    """The drawn values in the layout the graph has there."""
    if tensor.stride() == like.stride():
        return tensor
    made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=tensor.device)
    return made.copy_(tensor) if 0 not in like.stride() else tensor
