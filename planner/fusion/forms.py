"""The form of a set of nodes: equal for sets that differ in names alone, as equal layers do.

Operators with their arguments, what each reads, shapes, dtypes, layouts, and which values are read
elsewhere.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import fx

from planner.fusion.recompute import COPY
from planner.graph.view import op_name
from planner.passes.linear_bias import SPLIT


class Forms:
    """Tells forms within one graph, whose nodes are read once until `forget`."""

    def __init__(self) -> None:
        self._nodes: dict[fx.Node, tuple[int, tuple[fx.Node, ...]]] = {}
        self._values: dict[fx.Node, int] = {}
        self._numbers: dict[Hashable, int] = {}

    def form(self, nodes: Sequence[fx.Node]) -> Hashable:
        """The form of nodes in graph order."""
        inside = {node: number for number, node in enumerate(nodes)}
        inputs: dict[fx.Node, int] = {}
        parts: list[tuple[Hashable, ...]] = []
        for node in nodes:
            form, sources = self._node(node)
            read = tuple(
                (inside[s],) if s in inside else (inputs.setdefault(s, len(inputs)), self._value(s))
                for s in sources
            )
            elsewhere = any(user not in inside for user in node.users)
            parts.append((form, read, elsewhere))
        return tuple(parts)

    def forget(self) -> None:
        """Read the nodes anew from now on: some may read other values."""
        self._nodes.clear()

    def _node(self, node: fx.Node) -> tuple[int, tuple[fx.Node, ...]]:
        """The node without names, and its operands in order, each as often as it stands there."""
        if node not in self._nodes:
            sources: list[fx.Node] = []
            shown = fx.node.map_arg((node.args, node.kwargs), lambda s: _mark(sources, s))
            marks = (SPLIT in node.meta, COPY in node.meta)
            key = (op_name(node), repr(shown), self._value(node), marks)
            self._nodes[node] = (self._number(key), tuple(sources))
        return self._nodes[node]

    def _value(self, node: fx.Node) -> int:
        if node not in self._values:
            self._values[node] = self._number(_described(node.meta.get("val")))
        return self._values[node]

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


def _mark(sources: list[fx.Node], source: fx.Node) -> Any:
    sources.append(source)
    return f"%{len(sources)}"


def _described(value: Any) -> Hashable:
    if not isinstance(value, torch.Tensor):
        return repr(type(value))
    shown = (tuple(value.shape), tuple(value.stride()), value.dtype, value.device)
    return (*map(str, shown), str(value.storage_offset()))
