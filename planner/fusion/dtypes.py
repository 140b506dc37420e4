"""Operators that no region takes because of a dtype, each with the one reason."""

from __future__ import annotations

import torch
from torch import fx

from fusion_kernels.builder import dtype_refusal


def refused_dtype(node: fx.Node) -> str:
    """Why no kernel reads or writes one of the node's tensors; "" where none has such a dtype."""
    for value in (node.meta.get("val"), *(n.meta.get("val") for n in node.all_input_nodes)):
        if isinstance(value, torch.Tensor):
            reason = dtype_refusal(str(value.dtype).removeprefix("torch."))
            if reason:
                return reason
    return ""
