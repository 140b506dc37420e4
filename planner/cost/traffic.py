"""Bytes an operator must move: each input read once, each output written once.

Views move nothing; lookups read only the rows asked for. It is the least traffic a kernel of
that operator alone can have, so that bytes / bandwidth is a lower bound of its time.
"""

from __future__ import annotations

from collections.abc import Iterable

from planner.cost.families import (
    ASSERTION,
    FACTORY,
    MAYBE_VIEW,
    ROW_LOOKUP,
    UNINITIALIZED,
    VIEW,
    packet,
)
from planner.graph.op_graph import BYTES_PER_ELEMENT, OpNode, TensorMeta


def bytes_of(node: OpNode) -> int | None:
    """Bytes of one call, or None for a tensor whose element size is not known or an operator
    that returns no tensor.
    """
    name = packet(node.op)
    if name in VIEW or name in UNINITIALIZED or name in ASSERTION:
        return 0
    if not node.outputs:
        return None
    written = _sum(node.outputs)
    if name in FACTORY:
        return written
    if name in MAYBE_VIEW and _is_alias(node, name):
        return 0
    if name in ROW_LOOKUP:
        # The rows are read once and written once; the indices are read.
        return _sum((*node.outputs, *node.outputs, *node.inputs[1:]))
    if name == "aten.copy":
        # The first argument is only written.
        return _sum((*node.inputs[1:2], *node.outputs))
    return _sum((*node.inputs, *node.outputs))


def _sum(metas: Iterable[TensorMeta]) -> int | None:
    total = 0
    for meta in metas:
        if meta.dtype not in BYTES_PER_ELEMENT:
            return None
        total += meta.nbytes
    return total


def _is_alias(node: OpNode, name: str) -> bool:
    """Whether an operator that may return its input (or a view of it) does so here."""
    if not node.inputs:
        return False
    source, out = node.inputs[0], node.outputs[0]
    if name in ("aten.dropout", "aten.feature_dropout"):
        return not node.arg(2, "train", True)
    if name in ("aten.to", "aten.type_as", "aten.contiguous"):
        return (source.dtype, source.device, source.stride) == (out.dtype, out.device, out.stride)
    return can_view(source.shape, source.stride, out.shape)


def can_view(shape: tuple[int, ...], stride: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether a strided tensor can be seen in another shape of as many elements without a copy.

    Adjacent dimensions whose strides continue each other form one chunk of memory; the target
    must cut at the chunks' borders (the rule of torch.Tensor.view).
    """
    dims = [(n, s) for n, s in zip(shape, stride, strict=True) if n != 1]
    if 0 in shape or not dims:
        return True
    chunks: list[int] = []
    for index, (n, _) in enumerate(dims):
        continues = index > 0 and dims[index - 1][1] == n * dims[index][1]
        if continues:
            chunks[-1] *= n
        else:
            chunks.append(n)
    remaining = iter(n for n in target if n != 1)
    for chunk in chunks:
        covered = 1
        while covered < chunk:
            covered *= next(remaining)
        if covered != chunk:
            return False
    return True
