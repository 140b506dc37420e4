"""Removes operators that change nothing: metadata asserts, copies of copies, identity views and
casts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

aten = torch.ops.aten

_ASSERTS = {aten._assert_tensor_metadata.default}
_VIEWS = {
    aten.view.default,
    aten.reshape.default,
    aten.expand.default,
    aten._unsafe_view.default,
    aten.slice.Tensor,
    aten.permute.default,
    aten.alias.default,
    aten.detach.default,
    aten.lift_fresh_copy.default,
}
_COPIES = {
    aten.clone.default,
    aten.contiguous.default,
    aten._to_copy.default,
    aten.to.dtype,
    aten.to.dtype_layout,
    aten.to.device,
    aten.dropout.default,
}
_VIEW_LIKE = {
    *_VIEWS,
    aten.transpose.int,
    aten.t.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.select.int,
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.unbind.int,
    aten.chunk.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
}


def drop_asserts(program: ExportedProgram) -> tuple[str, ...]:
    """Remove torch.export's tensor metadata assertions; the shapes are guarded by the caller."""
    found = [node for node in program.graph.nodes if node.target in _ASSERTS]
    for node in found:
        program.graph.erase_node(node)
    return (f"{len(found)} metadata asserts removed",) if found else ()


def drop_noops(program: ExportedProgram) -> tuple[str, ...]:
    """Remove views, casts and copies whose result equals their input in shape, dtype and strides.

    A copy stays when its result can reach an output while its source is an input or reaches an
    output too: there the copy is what keeps two tensors of the caller apart.
    """
    removed: dict[str, int] = {}
    for node in list(program.graph.nodes):
        if not _changes_nothing(node) or (node.target in _COPIES and _keeps_apart(node)):
            continue
        removed[str(node.target)] = removed.get(str(node.target), 0) + 1
        node.replace_all_uses_with(node.args[0])
        program.graph.erase_node(node)
    return tuple(f"{count} x {op} that changes nothing" for op, count in sorted(removed.items()))


def _changes_nothing(node: fx.Node) -> bool:
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], fx.Node):
        return False
    if node.target is aten.dropout.default and node.args[2] is True:
        return False
    if _adds_integer_zero(node):
        return True
    if node.target not in _VIEWS and node.target not in _COPIES:
        return False
    return _same_meta(_value(node), _value(node.args[0]))


def _adds_integer_zero(node: fx.Node) -> bool:
    """x + 0 for integers; for floats it would turn -0.0 into 0.0."""
    value = _value(node)
    return (
        node.target is aten.add.Tensor
        and isinstance(node.args[1], int)
        and node.args[1] == 0
        and isinstance(value, torch.Tensor)
        and not value.dtype.is_floating_point
        and _same_meta(value, _value(node.args[0]))
    )


def _value(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, fx.Node) else None


def _same_meta(a: Any, b: Any) -> bool:
    return (
        isinstance(a, torch.Tensor)
        and isinstance(b, torch.Tensor)
        and (a.dtype, a.device, a.layout) == (b.dtype, b.device, b.layout)
        and tuple(a.shape) == tuple(b.shape)
        and bool(a.stride() == b.stride())
    )


def _keeps_apart(copy: fx.Node) -> bool:
    source = copy.args[0]
    assert isinstance(source, fx.Node)
    return _reaches_output(copy) and (
        _storage_root(source).op == "placeholder" or _reaches_output(source, without=copy)
    )


def _storage_root(node: fx.Node) -> fx.Node:
    while node.op == "call_function" and node.target in _VIEW_LIKE and node.args:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        node = source
    return node


def _reaches_output(node: fx.Node, without: fx.Node | None = None) -> bool:
    """Whether the node's storage is part of the outputs, through views only."""
    for user in node.users:
        if user is without:
            continue
        if user.op == "output":
            return True
        if user.target in _VIEW_LIKE and _reaches_output(user):
            return True
    return False
