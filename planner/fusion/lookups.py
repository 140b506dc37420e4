"""Operators that read a table at positions that another tensor holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from planner.graph.view import op_name

_EMBEDDING, _GATHER = "aten.embedding.default", "aten.gather.default"
_SELECT, _INDEX = "aten.index_select.default", "aten.index.Tensor"
_PASSING = frozenset(
    f"aten.{name}"
    for name in (
        *("where.ScalarOther", "where.self", "unsqueeze.default", "squeeze.dim"),
        *("view.default", "reshape.default", "expand.default", "to.dtype", "_to_copy.default"),
    )
)
LOOKUPS = frozenset((_EMBEDDING, _GATHER, _SELECT, _INDEX))
_POSITIONS = (torch.int32, torch.int64)


@dataclass(frozen=True, slots=True)
class Lookup:
    """`node` reads `table` along dimension `dim` at the positions in `index`."""

    node: fx.Node
    table: fx.Node
    index: fx.Node
    dim: int

    @property
    def elementwise(self) -> bool:
        """Whether the index has an element for each of the result's, as gather's has; else it
        takes the place of the table's dimension.
        """
        return op_name(self.node) == _GATHER

    @property
    def wraps(self) -> bool:
        """Whether negative positions count from the end, as x[i] has it."""
        return op_name(self.node) == _INDEX


def lookup_of(node: fx.Node) -> Lookup | None:
    """What a lookup reads and where, None for any other operator, and for x[i] of several indices
    or of truth values.
    """
    name, args = op_name(node), node.args
    if name not in LOOKUPS or len(args) < 2:
        return None
    table: Any = args[0]
    if name == _EMBEDDING:
        index: Any = args[1]
        return Lookup(node, table, index, 0)
    if name == _INDEX:
        return _indexed(node)
    index = args[2]
    dim: Any = args[1]
    return Lookup(node, table, index, dim % max(table.meta["val"].dim(), 1))


def _indexed(node: fx.Node) -> Lookup | None:
    table, indices = node.args
    assert isinstance(indices, list | tuple)
    given = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if len(given) != 1 or not isinstance(table, fx.Node):
        return None
    ((dim, index),) = given
    if not isinstance(index, fx.Node) or index.meta["val"].dtype not in _POSITIONS:
        return None
    return Lookup(node, table, index, dim)


def bound_of(node: fx.Node) -> int | None:
    """The size of the smallest table that the node's integers are positions in, None where they
    are no positions.
    """
    sizes = [
        found.table.meta["val"].shape[found.dim]
        for found in map(lookup_of, node.users)
        if found is not None and found.index is node and isinstance(found.table.meta["val"], Tensor)
    ]
    return min(map(int, sizes), default=None)


def bound_beyond(node: fx.Node) -> int | None:
    """The same where the positions are looked up after a choice among them, or a view of them."""
    further = [bound_beyond(user) for user in node.users if op_name(user) in _PASSING]
    return min((n for n in (bound_of(node), *further) if n is not None), default=None)
