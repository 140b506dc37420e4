"""What a backend does with one operator call: the table entry, however it is written there, or the
operators the call is made of.

Order: the entry (see lookup), what torch registers for an operator the table does not list,
composite or decomposition, the backend's default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from planner.graph.op_graph import OpNode
from planner.support import wording
from planner.support.backend_table import BackendTable
from planner.support.dispatcher import (
    is_composite_explicit,
    is_composite_implicit,
    registered_level,
)
from planner.support.dtype_limits import OpCall, call_of
from planner.support.leaves import NotTraced, leaf_calls
from planner.support.lookup import Match, Resolution, entry_for, look_up
from planner.support.op_names import (
    namespace_of,
    overload_of,
    packet_of,
)

__all__ = ["Match", "Resolution", "resolve"]

_TORCH_NAMESPACES = ("aten", "prims")
_ATTENTION = "aten.scaled_dot_product_attention.default"
_ATTENTION_KERNELS = "aten._scaled_dot_product_"
_FAKE_DEVICES = {"CPU": "cpu", "CUDA": "cuda"}
_WORST_FIRST = ("unsupported", "stub", "cpu_fallback", "unknown")


def resolve(op: str, table: BackendTable, node: OpNode | None = None) -> Resolution:
    """What `table`'s backend does with `op` ("aten.add.Tensor").

    `node`, a call of `op`, gives dtypes to hold against limits and inputs to follow composites
    with. Without it a composite keeps the table's word for it and the reason says that its parts
    were not looked at.
    """
    call = OpCall(op) if node is None else call_of(node)
    direct = look_up(call, table)
    if direct is not None and direct.level != "composite_implicit":
        return direct
    if direct is None:
        registered = _from_torch(op, table)
        if registered is not None or not _can_be_taken_apart(op, table):
            return registered or _default(op, table)
    if node is None:
        return direct or _not_followed(table, "no example inputs were given")
    return _by_parts(node, table)


def _can_be_taken_apart(op: str, table: BackendTable) -> bool:
    if is_composite_implicit(op):
        return True
    return table.family == "converter" and overload_of(op) in _decompositions()


def _by_parts(node: OpNode, table: BackendTable) -> Resolution:
    """The answer for an operator that runs as others: covered when each of them is."""
    converter = table.family == "converter"
    decompositions = _decompositions() if converter else {}
    device = _FAKE_DEVICES.get(table.dispatch_key or "", "meta")
    leaves = leaf_calls(node, device, lambda op: _is_leaf(op, table), decompositions)
    if isinstance(leaves, NotTraced):
        return _not_followed(table, leaves.reason)
    answers = {leaf: _leaf(leaf, table) for leaf in leaves}
    via = tuple(dict.fromkeys(leaf.op for leaf in leaves))
    missing = {leaf: answer for leaf, answer in answers.items() if not answer.covered}
    level = "decomposed" if converter else "composite_implicit"
    if missing:
        levels = {answer.level for answer in missing.values()}
        level = next(worst for worst in _WORST_FIRST if worst in levels)
    lacking = {leaf.op: answer.reason for leaf, answer in missing.items()}
    return Resolution(
        level=level,
        reason=wording.parts_reason(via, lacking, _fused_kernels(node.op, via, table), table),
        dtypes=None,
        match="decomposition" if converter else "composite",
        via=via,
        evidence=wording.parts_evidence(table),
    )


def _fused_kernels(op: str, via: tuple[str, ...], table: BackendTable) -> tuple[str, ...]:
    """The attention kernels the table lists besides those in `via`: torch chooses among them by
    device and inputs when it runs, which no trace on another machine can foresee.
    """
    if op != _ATTENTION:
        return ()
    return tuple(
        name
        for name, entry in table.entries.items()
        if name.startswith(_ATTENTION_KERNELS)
        and name.endswith(".default")
        and "backward" not in name
        and entry.level == "native"
        and name not in via
    )


def _is_leaf(op: str, table: BackendTable) -> bool:
    found = entry_for(op, table)
    return found is not None and found[0].level != "composite_implicit"


def _leaf(call: OpCall, table: BackendTable) -> Resolution:
    direct = look_up(call, table)
    if direct is not None:
        return direct
    return _from_torch(call.op, table) or _default(call.op, table)


def _from_torch(op: str, table: BackendTable) -> Resolution | None:
    """For an operator that a dispatcher's table does not list: what torch itself registers.

    An implementation for every device holds for any backend; a kernel of the backend's own key
    counts for custom operators, which no table lists.
    """
    if table.family != "dispatcher":
        return None
    if namespace_of(op) not in _TORCH_NAMESPACES and table.dispatch_key is not None:
        level = registered_level(op, table.dispatch_key)
        if level in ("native", "composite_explicit"):
            reason = wording.registered_reason(level, table)
            return Resolution(level, reason, None, "registered", (), wording.THIS_PROCESS)
        return None
    if not is_composite_explicit(op):
        return None
    reason = wording.registered_reason("composite_explicit", table)
    return Resolution("composite_explicit", reason, None, "composite", (), wording.THIS_PROCESS)


def _default(op: str, table: BackendTable) -> Resolution:
    """The backend's word on operators it does not list; it speaks of torch's operators only."""
    own = namespace_of(op) in _TORCH_NAMESPACES
    if own and overload_of(op) is None:
        reason = wording.not_in_torch_reason(op)
        return Resolution("unknown", reason, None, "default", (), table.provenance.citation)
    overloads = sorted(name for name in table.entries if packet_of(name) == packet_of(op))
    reason = wording.absent_reason(op, own, overloads, table)
    level = table.default_level if own else "unknown"
    return Resolution(level, reason, None, "default", (), table.provenance.citation)


def _not_followed(table: BackendTable, why: str) -> Resolution:
    match: Match = "decomposition" if table.family == "converter" else "composite"
    reason = wording.not_followed_reason(why)
    return Resolution("unknown", reason, None, match, (), table.provenance.citation)


@cache
def _decompositions() -> Mapping[Any, Callable[..., Any]]:
    """What torch.onnx and other converters take apart by: the core ATen decompositions, then all
    that torch registers besides.
    """
    import torch
    from torch._decomp import decomposition_table

    core = torch.export.default_decompositions()
    return {**decomposition_table, **dict(core.items())}
