"""A linear, its bias and an activation as one call of the library, which BLAS computes as it
writes the product.

`aten._addmm_activation` is cublasLt's epilogue on CUDA. Its GELU is the tanh form there and the
erf form on CPU, so it takes the place of that one alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from planner.graph.view import op_name
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
    gelu = _has_gelu(activation, device)
    if gelu is None or not isinstance(linear, fx.Node) or linear.target is not aten.linear.default:
        return None
    alone = list(linear.users) == [bias] and list(bias.users) == [activation]
    return Epilogue(linear, bias, activation, gelu) if alone and _plain(linear, bias) else None


def use_epilogue(graph: fx.Graph, found: Epilogue) -> None:
    """Put the library's call in the place of the three nodes."""
    x, weight = found.linear.args[:2]
    value = found.activation.meta["val"]
    assert isinstance(x, fx.Node)
    with graph.inserting_before(found.activation):
        rows = _call(graph, found, aten.view.default, x, (-1, x.meta["val"].shape[-1]))
        turned = _call(graph, found, aten.t.default, weight)
        product = _call(
            graph,
            found,
            aten._addmm_activation.default,
            found.bias.args[1],
            rows,
            turned,
            use_gelu=found.gelu,
        )
        result = _call(graph, found, aten.view.default, product, tuple(value.shape))
    found.activation.replace_all_uses_with(result)
    for node in (found.activation, found.bias, found.linear):
        graph.erase_node(node)


def _has_gelu(activation: fx.Node, device: str) -> bool | None:
    """Whether the epilogue is a GELU or a ReLU; None where the activation is neither."""
    if op_name(activation) == "aten.relu.default":
        return False
    form = activation.kwargs.get("approximate", "none")
    wanted = "none" if device.startswith("cpu") else "tanh"
    return True if op_name(activation) == "aten.gelu.default" and form == wanted else None


def _plain(linear: fx.Node, bias: fx.Node) -> bool:
    """One weight matrix, a vector of biases in its dtype, and rows that lie one after another."""
    x, weight, added = (n.meta["val"] for n in (*linear.all_input_nodes, bias.all_input_nodes[1]))
    known = all(isinstance(value, Tensor) for value in (x, weight, added))
    sizes = (*x.shape, *weight.shape, *added.shape)
    return (
        known
        and all(isinstance(size, int) and size > 0 for size in sizes)
        and (weight.dim(), added.dim()) == (2, 1)
        and x.dim() > 0
        and x.is_contiguous()
        and x.dtype == weight.dtype == added.dtype
    )


def _call(graph: fx.Graph, found: Epilogue, target: Any, *args: Any, **kwargs: bool) -> fx.Node:
    node = graph.call_function(target, args, dict(kwargs))
    given = fx.node.map_arg(args, lambda source: source.meta["val"])
    node.meta = {**found.activation.meta, "val": target(*given, **kwargs)}
    return node
