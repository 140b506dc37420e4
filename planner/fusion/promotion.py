"""Integers without dimensions, which eager brings to the dtype of the tensor beside them."""

from __future__ import annotations

import torch
from torch import Tensor, fx

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def wrapped_operands(node: fx.Node) -> dict[fx.Node, torch.dtype]:
    """The operands that wrap before the operator sees them, and the dtype that they wrap to.

    Of a uint8 tensor and an int64 one without dimensions eager makes uint8, and so it compares 255
    where that holds -1. Where the result is floating, no operand wraps.
    """
    values = {n: n.meta.get("val") for n in (node, *node.args) if isinstance(n, fx.Node)}
    tensors = {n: value for n, value in values.items() if isinstance(value, Tensor)}
    if any(value.is_floating_point() for value in tensors.values()):
        return {}
    integers = {n: v for n, v in tensors.items() if v.dtype in _INTEGERS and n is not node}
    shaped = [value.dtype for value in integers.values() if value.dim()]
    if not shaped or len(shaped) == len(integers):
        return {}
    common = shaped[0]
    for dtype in shaped[1:]:
        common = torch.promote_types(common, dtype)
    return {
        n: common
        for n, value in integers.items()
        if not value.dim() and torch.promote_types(value.dtype, common) is not common
    }
