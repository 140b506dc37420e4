"""Computes equal pure operators on equal inputs once: masks, position tables, casts."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Hashable
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from planner.passes.aliasing import reaches_output

_RANDOM = torch.Tag.nondeterministic_seeded
# Operators of other libraries may hold state that their schema does not speak of.
_KNOWN = {"aten", "prims"}
# What they return holds whatever memory held.
_UNINITIALISED = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
# Python arithmetic on sizes, and parts of an operator's several results.
_ON_SIZES = {
    operator.add,
    operator.sub,
    operator.mul,
    operator.floordiv,
    operator.mod,
    operator.neg,
}
# Python takes 1, 1.0 and True for equal; operators do not. Floats are told apart by their bits.
_PLAIN = (int, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


class _Unknown(Exception):
    """An argument whose equality is not known."""


def common_subexpressions(program: ExportedProgram) -> tuple[str, ...]:
    """Replace each pure operator by an earlier equal one.

    Random operators, operators that write, and those of other libraries stay, and nothing is
    carried past one that may write. Two results that may both reach an output stay two: the
    caller may write into one of them.
    """
    seen: dict[Hashable, fx.Node] = {}
    removed: Counter[str] = Counter()
    for node in list(program.graph.nodes):
        if node.op != "call_function":
            continue
        if may_write(node):
            seen.clear()
        key = _key(node)
        if key is None:
            continue
        first = seen.setdefault(key, node)
        if first is node or (reaches_output(first) and reaches_output(node)):
            continue
        node.replace_all_uses_with(first)
        program.graph.erase_node(node)
        removed[str(node.target)] += 1
    return tuple(
        f"{count} x {op} computed once instead of again" for op, count in sorted(removed.items())
    )


def may_write(node: fx.Node) -> bool:
    """Whether a call may write into a tensor; one of a function that is not known may."""
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.is_mutable
    return node.target not in _ON_SIZES and node.target is not operator.getitem


def _key(node: fx.Node) -> Hashable | None:
    """What two calls have in common when they compute the same; None for a call that must stay."""
    if not _is_pure(node):
        return None
    try:
        return node.target, _frozen(node.args), _frozen(node.kwargs)
    except _Unknown:
        return None


def _is_pure(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return not may_write(node)
    return (
        target.namespace in _KNOWN
        and not target._schema.is_mutable
        and _RANDOM not in target.tags
        and target._schema.name.split("::")[-1] not in _UNINITIALISED
        and not node.is_impure()
    )


def _frozen(value: Any) -> Hashable:
    if isinstance(value, fx.Node):
        return value
    if isinstance(value, dict):
        return tuple((name, _frozen(item)) for name, item in sorted(value.items()))
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, slice):
        return slice, _frozen((value.start, value.stop, value.step))
    if isinstance(value, float):
        return float, value.hex()
    if isinstance(value, _PLAIN):
        return type(value), value
    raise _Unknown
