"""Which dtype an operator call meets a backend's dtype limit with."""

from __future__ import annotations

from dataclasses import dataclass

from planner.graph.op_graph import OpNode
from planner.support.op_names import overload_of, packet_of

_ACCUMULATING = frozenset(f"aten.{name}" for name in ("sum", "nansum", "prod", "cumsum", "cumprod"))
_CASTS = frozenset(("aten._to_copy", "aten.to", "prims.convert_element_type"))
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
    """The dtype to hold against a table's `dtypes`: the one torch computes in; None when the call
    has no tensor argument.

    For pointwise operators that is the promoted dtype of the tensors, for sums and products (which
    torch accumulates in int64 for integers) the result's, for others the leading tensor's. Where
    integers give a floating result (`mul(int64, 2.5)`, `logsumexp(int64)`) it is the result's,
    except in a cast, whose source must be read as it is.
    """
    if not call.inputs:
        return None
    packet = packet_of(call.op)
    own = _promoted(call.inputs) if _is_pointwise(call.op) else call.inputs[0]
    result = call.outputs[0] if call.outputs else own
    if packet in _ACCUMULATING:
        return result
    if packet in _CASTS or _is_floating(own) or not _is_floating(result):
        return own
    return result


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
