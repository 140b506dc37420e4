"""Attention masks that the graph itself makes: dropped when provably all true, `is_causal` when
exactly causal.

A tracer makes transformers build its mask explicitly although eager skips it; a mask keeps
attention off the fast kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from planner.passes.affine import Values, affine_values
from planner.passes.aliasing import keeps_apart
from planner.passes.known_values import constant_nodes, evaluate, stored_constants
from planner.passes.noops import same_meta, same_sizes

aten = torch.ops.aten

# A mask too large to store is looked at all the same; 256 MB are those of 16,384 tokens.
_LARGEST_LOOK_BYTES = 1 << 28

_ATTENTION = aten.scaled_dot_product_attention.default
_MASK_POSITION = 3
_AND = {aten.__and__.Tensor, aten.bitwise_and.Tensor, aten.logical_and.default}

_Known = Callable[[Any], Tensor | None]
"""The distinct elements of an argument's value, None when they are not known."""


def simplify_masks(program: ExportedProgram) -> tuple[str, ...]:
    """Drop attention masks that are provably all true (or all zero when added) and true operands
    of `and`; turn exactly causal ones into `is_causal`.

    Proof is evaluation: the mask depends on nothing but the graph, and every element is looked at.
    Where sizes are open it is arithmetic: what the mask is made of follows from its indices alone.
    """
    notes: list[str] = []
    known = _known_values(program)
    by_index = affine_values(program.graph)
    for node in list(program.graph.nodes):
        if node.target in _AND:
            notes += _simplify_and(program.graph, node, known, by_index)
    attention = [node for node in program.graph.nodes if node.target is _ATTENTION]
    dropped = sum(_drop_mask(node, known, by_index) for node in attention)
    causal = sum(_make_causal(node, known, by_index) for node in attention)
    if dropped:
        notes.append(f"{dropped} attention masks dropped: constant and all true")
    if causal:
        notes.append(f"{causal} attention masks replaced by is_causal: constant and exactly causal")
    return tuple(notes)


def _known_values(program: ExportedProgram) -> _Known:
    """Looks through expansions, and evaluates what was too large to fold, once each."""
    stored = stored_constants(program)
    constant = constant_nodes(program.graph)
    evaluated: dict[fx.Node, Tensor] = {}

    def known(node: Any) -> Tensor | None:
        while isinstance(node, fx.Node) and node.target is aten.expand.default:
            node = node.args[0]
        if not isinstance(node, fx.Node):
            return None
        if node in constant and node not in evaluated:
            value = node.meta["val"]
            if value.numel() * value.element_size() > _LARGEST_LOOK_BYTES:
                return None
            evaluated[node] = evaluate(node)
        return evaluated.get(node, stored.get(node.name))

    return known


def _masks_nothing(value: Tensor | None) -> bool:
    if value is None:
        return False
    return bool(value.all()) if value.dtype is torch.bool else not bool(value.any())


def _always_true(node: Any, by_index: Values) -> bool:
    found = by_index.get(node) if isinstance(node, fx.Node) else None
    return found is not None and found.is_condition and found.constant == 1


def _drop_mask(node: fx.Node, known: _Known, by_index: Values) -> bool:
    if len(node.args) <= _MASK_POSITION:
        return False
    mask = node.args[_MASK_POSITION]
    if not _always_true(mask, by_index) and not _masks_nothing(known(mask)):
        return False
    node.update_arg(_MASK_POSITION, None)
    return True


def _make_causal(node: fx.Node, known: _Known, by_index: Values) -> bool:
    """A constant boolean mask that is the lower triangle of a square is what is_causal means."""
    if len(node.args) <= _MASK_POSITION or any(node.args[_MASK_POSITION + 1 :]):
        return False
    mask = node.args[_MASK_POSITION]
    if not _is_triangle(mask, by_index) and not _is_lower_triangle(known(mask)):
        return False
    node.args = (*node.args[:_MASK_POSITION], None, 0.0, True)
    return True


def _is_triangle(mask: Any, by_index: Values) -> bool:
    """Of a square, whatever its size."""
    found = by_index.get(mask) if isinstance(mask, fx.Node) else None
    if found is None or not found.is_causal:
        return False
    rows, columns = mask.meta["val"].shape[-2:]
    return same_sizes((rows,), (columns,))


def _is_lower_triangle(value: Tensor | None) -> bool:
    if value is None or value.dtype is not torch.bool or value.ndim < 2:
        return False
    rows, columns = value.shape[-2:]
    return bool(rows == columns) and torch.equal(value, torch.ones_like(value).tril())


def _simplify_and(graph: fx.Graph, node: fx.Node, known: _Known, by_index: Values) -> list[str]:
    """x & true is x; only for booleans, and only where no one can tell x from a fresh tensor."""
    for index in (0, 1):
        value, other = known(node.args[index]), node.args[1 - index]
        true = value is not None and value.dtype is torch.bool and bool(value.all())
        if not true and not _always_true(node.args[index], by_index):
            continue
        if not isinstance(other, fx.Node) or other.meta["val"].dtype is not torch.bool:
            continue
        stand_in = _stand_in(graph, node, other)
        if stand_in is None:
            continue
        node.replace_all_uses_with(stand_in)
        graph.erase_node(node)
        return [f"{node.name}: `and` with an all-true constant removed"]
    return []


def _stand_in(graph: fx.Graph, node: fx.Node, other: fx.Node) -> fx.Node | None:
    """`other` itself, or expanded to the result's shape where users read nothing but elements."""
    wanted, value = node.meta["val"], other.meta["val"]
    if same_meta(wanted, value):
        return None if keeps_apart(node, other) else other
    if not _only_elements_are_read(node) or not all(isinstance(n, int) for n in wanted.shape):
        return None
    with graph.inserting_before(node):
        expanded = graph.call_function(aten.expand.default, (other, list(wanted.shape)))
    expanded.meta = {**node.meta, "val": value.expand(wanted.shape)}
    return expanded


def _only_elements_are_read(node: fx.Node) -> bool:
    """Whether no user's result depends on the strides: attention, also behind `and` and expand."""
    return all(
        user.target is _ATTENTION
        or (
            (user.target in _AND or user.target is aten.expand.default)
            and _only_elements_are_read(user)
        )
        for user in node.users
    )
