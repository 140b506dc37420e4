"""A region in its graph: the nodes that feed it and those it replaces, and how their tensors become
the kernel's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from fusion_kernels.ir import Region
from planner.fusion.placing import Step

View = Callable[[Any, Step], Any]


@dataclass(frozen=True, slots=True)
class Read:
    """An input of the region: the position of the node that it reads, and the views in between."""

    source: int
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class LoweredRegion:
    """A region with the graph nodes that feed it and those it replaces.

    `reads` holds for each input of the region where it comes from, `results` for each output the
    views that make it the node's. `places` tells for each node the dimensions of the region that
    its own are made of, outermost first. The nodes in `kept` are views that others read too: they
    stay in the graph. `tables` holds the dimension along which an input is looked up, `unrounded`
    the casts among the nodes that the region leaves out.
    """

    region: Region
    inputs: tuple[fx.Node, ...]
    nodes: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    reads: tuple[Read, ...]
    results: tuple[tuple[Step, ...], ...]
    places: Mapping[fx.Node, tuple[tuple[int, ...], ...]]
    kept: frozenset[fx.Node] = frozenset()
    tables: Mapping[fx.Node, int] = field(default_factory=dict)
    unrounded: tuple[fx.Node, ...] = ()

    @property
    def as_they_lie(self) -> bool:
        """Whether the kernel reads and returns the nodes' own tensors, each read once."""
        once = tuple(Read(n) for n in range(len(self.inputs)))
        return self.reads == once and not any(self.results)

    def arguments(self, values: Sequence[Any], view: View | None = None) -> tuple[Any, ...]:
        """The kernel's arguments for the values of `inputs`: tensors, or whatever `view` takes."""
        look = view or _viewed
        found = []
        for read in self.reads:
            value = values[read.source]
            for step in read.steps:
                value = look(value, step)
            found.append(value)
        return tuple(found)

    def returned(self, results: Any, view: View | None = None) -> tuple[Any, ...]:
        """The values of `outputs` for what the kernel returned."""
        look = view or _viewed
        found = []
        values = results if isinstance(results, list | tuple) else (results,)
        for value, steps in zip(values, self.results, strict=True):
            for step in steps:
                value = look(value, step)
            found.append(value)
        return tuple(found)


def _viewed(tensor: Any, step: Step) -> Any:
    overload, arguments = step
    return overload(tensor, *arguments)
