"""What a set of nodes would save as one kernel: sets of one form are lowered and priced once.

The layers of a model are equal but for the names of their nodes. The form of a set leaves names
out: operators with their arguments, what each reads, shapes, dtypes, layouts, and which values are
read elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import fx

from planner.fusion.lower import LoweredRegion
from planner.fusion.reach import Reach
from planner.fusion.weights import Rates, saving_us
from planner.graph.view import op_name
from planner.passes.linear_bias import SPLIT

Lowering = Callable[[Sequence[fx.Node]], LoweredRegion | str]
"""The nodes (in graph order) as a region, or why they cannot be one kernel."""


class Prices:
    """Savings in microseconds by set of nodes."""

    def __init__(self, reach: Reach, rates: Rates, lowering: Lowering) -> None:
        self._reach = reach
        self._rates = rates
        self._lowering = lowering
        self._by_form: dict[Hashable, float | None] = {}
        self._by_bits: dict[int, float | None] = {}
        self._nodes: dict[fx.Node, tuple[int, tuple[fx.Node, ...]]] = {}
        self._values: dict[fx.Node, int] = {}
        self._numbers: dict[Hashable, int] = {}

    def saving_us(self, bits: int) -> float | None:
        """The predicted saving; None where the set cannot be one kernel."""
        if bits not in self._by_bits:
            nodes = self._reach.members(bits)
            form = self.form(nodes)
            if form not in self._by_form:
                found = self._lowering(nodes)
                priced = None if isinstance(found, str) else saving_us(found, self._rates)
                self._by_form[form] = priced
            self._by_bits[bits] = self._by_form[form]
        return self._by_bits[bits]

    def reason(self, bits: int) -> str | None:
        """Why the set cannot be one kernel, with the names of its own nodes; None when it can."""
        found = self._lowering(self._reach.members(bits))
        return found if isinstance(found, str) else None

    def form(self, nodes: Sequence[fx.Node]) -> Hashable:
        """Equal for sets that differ in names alone."""
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

    def _node(self, node: fx.Node) -> tuple[int, tuple[fx.Node, ...]]:
        """The node without names, and its operands in order, each as often as it stands there."""
        if node not in self._nodes:
            sources: list[fx.Node] = []
            shown = fx.node.map_arg((node.args, node.kwargs), lambda s: _mark(sources, s))
            key = (op_name(node), repr(shown), self._value(node), SPLIT in node.meta)
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
    return (
        *map(str, (tuple(value.shape), tuple(value.stride()), value.dtype, value.device)),
        value.storage_offset() if isinstance(value.storage_offset(), int) else None,
    )
