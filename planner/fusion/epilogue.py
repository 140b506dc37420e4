"""The library's form of a region that is a linear's bias and an activation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from planner.passes.activated_linear import (
    gelu_or_relu,
    library_is_right,
    put_activated,
    takes_rows,
)
from planner.passes.linear_bias import SPLIT

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The nodes that one call computes: a linear without bias, the addition of its bias, and the
    activation.
    """

    linear: fx.Node
    bias: fx.Node
    activation: fx.Node
    gelu: bool


def epilogue_of(nodes: Sequence[fx.Node], device: str) -> Epilogue | None:
    """The library's form of a region that is a linear's bias and an activation; None where it has
    none on `device` or the region is more than that.
    """
    if len(nodes) != 2 or SPLIT not in nodes[0].meta:
        return None
    bias, activation = nodes
    linear = bias.args[0]
    gelu = gelu_or_relu(activation, device)
    if gelu is None or not isinstance(linear, fx.Node) or linear.target is not aten.linear.default:
        return None
    alone = list(linear.users) == [bias] and list(bias.users) == [activation]
    return Epilogue(linear, bias, activation, gelu) if alone and _plain(linear, bias) else None


def right_epilogue_of(nodes: Sequence[fx.Node], device: str) -> Epilogue | None:
    """The library's form where it has NaN and infinities as eager does, which is tried."""
    found = epilogue_of(nodes, device)
    if found is None:
        return None
    bias: Any = found.bias.args[1]
    right = library_is_right(found.activation, found.linear, bias, gelu=found.gelu)
    return found if right else None


def use_epilogue(graph: fx.Graph, found: Epilogue) -> None:
    """Put the library's call in the place of the three nodes."""
    bias: Any = found.bias.args[1]
    put_activated(graph, found.activation, found.linear, bias, gelu=found.gelu)
    for node in (found.bias, found.linear):
        graph.erase_node(node)


def _plain(linear: fx.Node, bias: fx.Node) -> bool:
    return takes_rows(*(n.meta["val"] for n in (*linear.all_input_nodes, bias.all_input_nodes[1])))
