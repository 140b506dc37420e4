"""Which values of a graph may share storage, and whether a copy keeps two of the caller's tensors
apart.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch import fx

# Operators that may return their input, or a view of it, although their schema does not say so.
_SILENT = {
    "alpha_dropout",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "broadcast_tensors",
    "chain_matmul",
    "dropout",
    "einsum",
    "feature_alpha_dropout",
    "feature_dropout",
    "meshgrid",
    "sum_to_size",
    "type_as",
    "_unsafe_view",
}


def keeps_apart(copy: fx.Node, source: fx.Node) -> bool:
    """Whether dropping `copy` of `source` could make two tensors of the caller share storage.

    So it is when the copy can reach an output, while what it copies is an input, a weight or a
    constant, or reaches an output too.
    """
    if not reaches_output(copy):
        return False
    return any(
        root.op != "call_function" or reaches_output(root, without=copy) for root in _roots(source)
    )


def reaches_output(node: fx.Node, without: fx.Node | None = None) -> bool:
    """Whether an output may share the node's storage; ways through `without` do not count."""
    seen = {node}
    open_ends = [node]
    while open_ends:
        current = open_ends.pop()
        for user in current.users:
            if user is without or user in seen:
                continue
            if user.op == "output":
                return True
            if current in _sources(user):
                seen.add(user)
                open_ends.append(user)
    return False


def _roots(node: fx.Node) -> Iterator[fx.Node]:
    """Where the node's storage was made: itself, or what it is a view of."""
    seen: set[fx.Node] = set()
    open_ends = [node]
    while open_ends:
        current = open_ends.pop()
        if current in seen:
            continue
        seen.add(current)
        sources = _sources(current)
        open_ends += sources
        if not sources:
            yield current


def _sources(node: fx.Node) -> list[fx.Node]:
    """The arguments whose storage the node's result may share."""
    if node.op != "call_function":
        return []
    if node.target is operator.getitem or not isinstance(node.target, torch._ops.OpOverload):
        return list(node.all_input_nodes)
    schema = node.target._schema
    if schema.name.split("::")[-1] in _SILENT:
        return list(node.all_input_nodes)
    found: list[fx.Node] = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None:
            given = (
                node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
            )
            fx.map_arg(given, found.append)
    return found
