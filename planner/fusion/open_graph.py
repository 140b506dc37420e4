"""A region of a program with open sizes, put back from the copy that it was found in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from fusion_kernels.builder import NotLowered
from planner.fusion.candidate import Candidate
from planner.fusion.lowered import LoweredRegion, Read
from planner.fusion.placing import Step
from planner.graph.at_sizes import by_name, two_sizes
from planner.graph.open_sizes import Sizes, evaluated, open_sizes

aten = torch.ops.aten


def in_program(program: ExportedProgram, way: Candidate) -> LoweredRegion:
    """The way's region in terms of the program's own nodes. Sizes in its views that are open are
    nodes too. Raises `NotLowered` where no size of the program is one of them.
    """
    found = open_sizes(program)
    if way.elsewhere is None or found is None:
        return way.lowered
    named = by_name(program.graph)

    def here(nodes: Sequence[fx.Node]) -> tuple[fx.Node, ...]:
        return tuple(named[node.name] for node in nodes)

    own, other = way.lowered, way.elsewhere
    inputs = here(own.inputs)
    sizes = _Lengths(program.graph, inputs, two_sizes(program, found))
    reads = [
        replace(read, steps=sizes.steps(_divided(read, own), _divided(again, other)))
        for read, again in zip(own.reads, other.reads, strict=True)
    ]
    results = [sizes.steps(*pair) for pair in zip(own.results, other.results, strict=True)]
    return replace(
        own,
        inputs=inputs,
        nodes=here(own.nodes),
        outputs=here(own.outputs),
        reads=tuple(reads),
        results=tuple(results),
        kept=frozenset(here(tuple(own.kept))),
        tables={named[node.name]: dim for node, dim in own.tables.items()},
        unrounded=here(own.unrounded),
    )


def _divided(read: Read, lowered: LoweredRegion) -> tuple[Step, ...]:
    """The views with every size written out: none can be told of a tensor without elements."""
    shape = lowered.inputs[read.source].meta["val"].shape
    steps: list[Step] = []
    for target, given in read.steps:
        if target is aten.unflatten.int:
            dim, (_, *inner) = given
            outer = shape[dim] // max(prod(inner), 1)
            steps.append((target, (dim, [outer, *inner])))
        else:
            steps.append((target, given))
    return tuple(steps)


class _Lengths:
    """Finds the node of a size by what it is at two sets of sizes."""

    def __init__(
        self, graph: fx.Graph, inputs: Sequence[fx.Node], sizes: tuple[Sizes, Sizes]
    ) -> None:
        self._graph, self._inputs, self._sizes = graph, inputs, sizes
        self._known: dict[tuple[int, int], fx.Node] = {}
        for node in graph.nodes:
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt) and node.op == "call_function":
                self._known.setdefault(self._pair(value), node)

    def steps(self, own: tuple[Step, ...], other: tuple[Step, ...]) -> tuple[Step, ...]:
        """The views with nodes for the sizes in which the two differ."""
        pairs = zip(own, other, strict=True)
        return tuple((left[0], self._mixed(left[1], right[1])) for left, right in pairs)

    def _mixed(self, left: Any, right: Any) -> Any:
        if isinstance(left, list | tuple):
            return type(left)([self._mixed(*pair) for pair in zip(left, right, strict=True)])
        return left if left == right else self._node((left, right))

    def _node(self, wanted: tuple[int, int]) -> fx.Node:
        if wanted not in self._known:
            self._known[wanted] = self._read(wanted)
        return self._known[wanted]

    def _read(self, wanted: tuple[int, int]) -> fx.Node:
        """A new node that reads the size off an input of the region."""
        for source in self._inputs:
            value = source.meta["val"]
            for dim, size in enumerate(value.shape if isinstance(value, Tensor) else ()):
                if self._pair(size) == wanted:
                    with self._graph.inserting_after(source):
                        node = self._graph.call_function(aten.sym_size.int, (source, dim))
                    node.meta = {"val": size}
                    return node
        raise NotLowered(f"a view of {wanted[0]} elements, which the program has no name for")

    def _pair(self, size: Any) -> tuple[int, int]:
        own, other = (evaluated(size, sizes) for sizes in self._sizes)
        return (-1, -1) if own is None or other is None else (own, other)
