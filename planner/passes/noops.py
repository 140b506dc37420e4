"""Removes operators that change nothing: metadata asserts, copies of copies, identity views and
casts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import statically_known_true

from planner.passes.aliasing import keeps_apart

aten = torch.ops.aten

_ASSERTS = {aten._assert_tensor_metadata.default}
# Share storage with their input, with or without them.
_VIEWS = {
    aten.view.default,
    aten.reshape.default,
    aten.expand.default,
    aten._unsafe_view.default,
    aten.slice.Tensor,
    aten.permute.default,
    aten.alias.default,
    aten.detach.default,
}
# May be what keeps two tensors of the caller apart.
_COPIES = {
    aten.clone.default,
    aten.contiguous.default,
    aten._to_copy.default,
    aten.to.dtype,
    aten.to.dtype_layout,
    aten.to.device,
    aten.lift_fresh_copy.default,
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
    output too: there the copy is what keeps two tensors of the caller apart. A view that is an
    output stays where its source is the caller's tensor as well: eager returns another tensor
    object, whose shape the caller may change in place. With symbolic sizes an operator goes only
    when nothing changes for any size.
    """
    return _dropped(program, _idle_source)


def drop_idle_copies(program: ExportedProgram) -> tuple[str, ...]:
    """Remove pads of nothing, repeats of one and concatenations with empty tensors: eager copies
    there, so that a captured program has them to be ranked by. What `drop_noops` keeps stays.
    """
    return _dropped(program, _copied_source)


def _dropped(
    program: ExportedProgram, source_of: Callable[[fx.Node], fx.Node | None]
) -> tuple[str, ...]:
    removed: dict[str, int] = {}
    for node in list(program.graph.nodes):
        source = source_of(node)
        if source is None:
            continue
        if _makes_an_object(node) if node.target in _VIEWS else keeps_apart(node, source):
            continue
        removed[str(node.target)] = removed.get(str(node.target), 0) + 1
        node.replace_all_uses_with(source)
        program.graph.erase_node(node)
    return tuple(f"{count} x {op} that changes nothing" for op, count in sorted(removed.items()))


def same_meta(a: Any, b: Any) -> bool:
    """Whether two (fake) tensors have one shape, dtype, device, layout and strides, for all sizes
    that symbols can take.
    """
    return (
        isinstance(a, torch.Tensor)
        and isinstance(b, torch.Tensor)
        and (a.dtype, a.device, a.layout) == (b.dtype, b.device, b.layout)
        and _same_sizes(a.shape, b.shape)
        and _same_sizes(a.stride(), b.stride())
    )


def _same_sizes(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(
        statically_known_true(left == right) for left, right in zip(a, b, strict=True)
    )


def _makes_an_object(view: fx.Node) -> bool:
    """Whether without the view one of the caller's tensors would be another of them."""
    source = view.args[0]
    assert isinstance(source, fx.Node)
    return _is_output(view) and (source.op == "placeholder" or _is_output(source))


def _is_output(node: fx.Node) -> bool:
    return any(user.op == "output" for user in node.users)


def _idle_source(node: fx.Node) -> fx.Node | None:
    """What a view, cast, copy or idle operator equals, None where it does something."""
    idle = node.target in _VIEWS or node.target in _COPIES
    if node.op != "call_function" or not node.args:
        return None
    if not (idle or _is_idle_dropout(node) or _adds_integer_zero(node)):
        return None
    return _same(node, node.args[0])


def _copied_source(node: fx.Node) -> fx.Node | None:
    """What a pad, a repeat or a concatenation is a mere copy of, None where it is not."""
    if node.target is aten.cat.default:
        return _same(node, _only_piece(node))
    # Of an equal shape, repeats can only have been of one.
    repeats = node.target in (aten.repeat.default, aten.repeat_interleave.self_int)
    return _same(node, node.args[0]) if repeats or _pads_nothing(node) else None


def _same(node: fx.Node, source: object) -> fx.Node | None:
    if not isinstance(source, fx.Node):
        return None
    return source if same_meta(node.meta.get("val"), source.meta.get("val")) else None


def _only_piece(cat: fx.Node) -> object:
    """What a concatenation is made of when all else in it is empty."""
    pieces: Any = cat.args[0]
    full = [piece for piece in pieces if not statically_known_true(piece.meta["val"].numel() == 0)]
    return full[0] if len(full) == 1 else None


def _pads_nothing(node: fx.Node) -> bool:
    """An equal shape is not enough: one side may lose what the other gets."""
    if node.target not in (aten.pad.default, aten.constant_pad_nd.default):
        return False
    sides: Any = node.args[1]
    return all(isinstance(size, int) and size == 0 for size in sides)


def _is_idle_dropout(node: fx.Node) -> bool:
    return node.target is aten.dropout.default and node.args[2] is False


def _adds_integer_zero(node: fx.Node) -> bool:
    """x + 0 for integers; for floats it would turn -0.0 into 0.0."""
    value = node.meta.get("val")
    return (
        node.target is aten.add.Tensor
        and isinstance(node.args[1], int)
        and node.args[1] == 0
        and isinstance(value, torch.Tensor)
        and not (value.is_floating_point() or value.is_complex())
    )
