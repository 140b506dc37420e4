"""What a comparison rounds its operands to before it compares them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from planner.graph.view import op_name

_NAMES = (
    *("eq", "ne", "lt", "le", "gt", "ge", "not_equal"),
    *("less", "less_equal", "greater", "greater_equal"),
)
_COMPARISONS = frozenset(f"aten.{name}.{form}" for name in _NAMES for form in ("Tensor", "Scalar"))


def compared_dtype(node: fx.Node) -> torch.dtype | None:
    """The dtype in which eager compares the node's operands: `x == 0.1` holds for bfloat16 x where
    x is 0.1 rounded to bfloat16. None where the node is no comparison, or not of floating values.
    """
    if op_name(node) not in _COMPARISONS or len(node.args) != 2:
        return None
    one, other = (_value(arg) for arg in node.args)
    if not all(isinstance(value, Tensor | bool | int | float) for value in (one, other)):
        return None
    dtype = torch.result_type(one, other)
    return dtype if dtype.is_floating_point else None


def is_rounded(operand: Any, dtype: torch.dtype) -> bool:
    """Whether an operand of a comparison in `dtype` is a number or of another dtype."""
    return not isinstance(operand, fx.Node) or operand.meta["val"].dtype is not dtype


def rounded_number(value: float, dtype: torch.dtype) -> float:
    """A number as a tensor of `dtype` holds it."""
    return float(torch.tensor(value, dtype=torch.float64).to(dtype))


def _value(operand: Any) -> Any:
    return operand.meta.get("val") if isinstance(operand, fx.Node) else operand
