"""What operators give exactly where eager's own arithmetic in float64 does not tell."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from planner.graph.view import op_name

_CHOOSES = "aten.where."
NEXT_AFTER = "aten.nextafter.default"


def polygamma(n: int, x: Tensor) -> Tensor:
    """aten.polygamma of a floating tensor, infinite at the poles of the trigamma function.

    Eager reflects it: pi^2 / sin^2(pi x), which at x = -1, -2, ... is a large number that comes of
    how pi is rounded, 1e15 in float32 and 1e32 in float64. The function grows without bound
    there from both sides.
    """
    result: Tensor = torch.special.polygamma(n, x)
    poles = (x <= 0) & (x == x.floor()) & (n == 1)
    return result.masked_fill(poles, float("inf"))


def nextafter(x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    """The neighbour among the values of `dtype`, as float64: of x as a tensor of `dtype` holds it.
    Float64's neighbour of x would be x again after rounding.
    """
    return torch.nextafter(x.to(dtype), y.to(dtype)).double()


def takes_whole_numbers(node: fx.Node) -> bool:
    """Whether the node is a floating function of integers and booleans only, which eager converts
    to float32 before it computes: sin of int8, a quotient of integers. What a tensor chooses by
    (the condition of a where) is no operand.
    """
    if node.op != "call_function" or op_name(node).startswith(_CHOOSES):
        return False
    value: Any = node.meta.get("val")
    operands = [source.meta.get("val") for source in node.all_input_nodes]
    return (
        isinstance(value, Tensor)
        and value.dtype.is_floating_point
        and _is_pointwise(node)
        and bool(operands)
        and all(isinstance(o, Tensor) and not _has_fraction(o.dtype) for o in operands)
    )


def _is_pointwise(node: fx.Node) -> bool:
    """Composites of torch.special carry no tag."""
    tags = getattr(node.target, "tags", ())
    return torch.Tag.pointwise in tags or op_name(node).startswith("aten.special_")


def _has_fraction(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex
