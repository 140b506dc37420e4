"""Which dtype an operator call meets a backend's dtype limit with."""

from __future__ import annotations

from dataclasses import dataclass

from planner.capture.op_graph import OpNode
from planner.support.op_names import overload_of

_FLOATING = ("float", "bfloat", "complex")


@dataclass(frozen=True, slots=True)
class OpCall:
    """An operator with the dtypes of its tensor arguments and results, by torch's short names."""

    op: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


def call_of(node: OpNode) -> OpCall:
    return OpCall(
        node.op,
        tuple(meta.dtype for meta in node.inputs),
        tuple(meta.dtype for meta in node.outputs),
    )


def limiting_dtype(call: OpCall) -> str | None:
    """The dtype to hold against a table's `dtypes`; None when the call has no tensor argument.

    A pointwise operator computes in the promoted dtype of its tensors (in its result's when
    integers give a floating result: `mul(int64, 2.5)`), any other in that of its leading tensor.
    """
    if not call.inputs:
        return None
    if not _is_pointwise(call.op):
        return call.inputs[0]
    promoted = _promoted(call.inputs)
    result = call.outputs[0] if call.outputs else promoted
    return result if _is_floating(result) and not _is_floating(promoted) else promoted


def _is_pointwise(op: str) -> bool:
    import torch

    overload = overload_of(op)
    return overload is not None and torch.Tag.pointwise in overload.tags


def _promoted(names: tuple[str, ...]) -> str:
    import torch

    dtype = getattr(torch, names[0])
    for name in names[1:]:
        dtype = torch.promote_types(dtype, getattr(torch, name))
    return str(dtype).removeprefix("torch.")


def _is_floating(name: str) -> bool:
    return name.startswith(_FLOATING)
