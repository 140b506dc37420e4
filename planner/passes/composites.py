"""Remembers which operator the parts were that it was taken apart into, and puts it back where no
kernel took any of them.

Its own kernel passes over its input once, where its parts do so several times.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx
from torch.export import ExportedProgram

from planner.cost.formulas import cost_of
from planner.graph.view import op_node

PART = "part_of"
"""Meta key of a part: the `Part` that it is."""


@dataclass(frozen=True, slots=True)
class _Read:
    """What part number `part` reads as its argument number `position`."""

    part: int
    position: int


@dataclass(frozen=True, slots=True)
class Composite:
    """An operator that was taken apart. `targets` are its parts' in graph order, `sizes_bytes` what
    each reads and writes; `results` holds which parts return which of its results, None where it
    has one alone.
    """

    name: str
    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    meta: Mapping[str, Any]
    targets: tuple[Any, ...]
    sizes_bytes: tuple[int, ...]
    results: tuple[tuple[int, int | None], ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Part number `index` of `composite`."""

    composite: Composite
    index: int


def remember(
    node: fx.Node, parts: Sequence[fx.Node], results: Sequence[tuple[fx.Node, int | None]]
) -> None:
    """Note in the parts (in graph order) what they were. `results` are those among them that take
    the place of the node or of its results. One whose inputs no part reads is not remembered.
    """
    where: dict[fx.Node, Any] = {
        source: _Read(index, position)
        for index, part in reversed(list(enumerate(parts)))
        for position, source in enumerate(part.args)
        if isinstance(source, fx.Node)
    }
    if not where.keys() >= set(node.all_input_nodes):
        return
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda source: where[source])
    composite = Composite(
        node.name,
        node.target,
        args,
        kwargs,
        dict(node.meta),
        tuple(part.target for part in parts),
        tuple(cost_of(op_node(part)).bytes or 0 for part in parts),
        tuple((parts.index(part), result) for part, result in results),
    )
    for index, part in enumerate(parts):
        part.meta[PART] = Part(composite, index)


def put_together(program: ExportedProgram) -> tuple[str, ...]:
    """Put back every composite whose parts are all still there."""
    done = Counter(_name(item) for item in put_back(program.graph))
    return tuple(f"{count} x {name} put back" for name, count in sorted(done.items()))


def put_back(graph: fx.Graph) -> tuple[Composite, ...]:
    """The same for a graph; returns what was put back."""
    found = {item.name: (item, parts) for item, parts in composites_in(graph.nodes)}
    return tuple(item for item, parts in found.values() if _put_back(graph, item, parts))


def composites_in(nodes: Iterable[fx.Node]) -> tuple[tuple[Composite, tuple[fx.Node, ...]], ...]:
    """Every composite of which some parts are among the nodes, with these, in graph order."""
    found: dict[str, tuple[Composite, list[fx.Node]]] = {}
    for node in nodes:
        part = node.meta.get(PART)
        if isinstance(part, Part) and node.target == part.composite.targets[part.index]:
            found.setdefault(part.composite.name, (part.composite, []))[1].append(node)
    return tuple((item, tuple(parts)) for item, parts in found.values())


def shares_of(graph: fx.Graph) -> dict[str, tuple[str, float]]:
    """For each part by name the name of its composite and the share of the composite's bytes that
    it moves.
    """
    found: dict[str, tuple[str, float]] = {}
    for item, parts in composites_in(graph.nodes):
        total = sum(item.sizes_bytes)
        for node in parts:
            size = item.sizes_bytes[node.meta[PART].index]
            found[node.name] = (item.name, size / total if total else 1 / len(item.targets))
    return found


def is_whole(composite: Composite, parts: Sequence[fx.Node]) -> bool:
    """Whether these are all of its parts, each once."""
    return [node.meta[PART].index for node in parts] == list(range(len(composite.targets)))


def _put_back(graph: fx.Graph, composite: Composite, parts: Sequence[fx.Node]) -> bool:
    returned = {parts[n] for n, _ in composite.results} if is_whole(composite, parts) else set()
    inner = [part for part in parts if part not in returned]
    if not returned or any(user not in parts for part in inner for user in part.users):
        return False

    def read(value: Any) -> Any:
        if isinstance(value, _Read):
            return parts[value.part].args[value.position]
        if isinstance(value, list | tuple):
            return type(value)(map(read, value))
        return value

    args, kwargs = read(composite.args), {key: read(v) for key, v in composite.kwargs.items()}
    # Several results are all of one input: whatever reads one of them stands after the first part.
    place = parts[-1] if len(returned) == 1 else parts[0]
    with graph.inserting_before(place):
        call = graph.create_node(
            "call_function", composite.target, args, kwargs, name=composite.name
        )
        call.meta = dict(composite.meta)
        for number, result in composite.results:
            part, value = parts[number], call
            if result is not None:
                value = graph.call_function(operator.getitem, (call, result))
                value.meta = {**composite.meta, "val": composite.meta["val"][result]}
            part.replace_all_uses_with(value)
    for part in reversed(parts):
        graph.erase_node(part)
    return True


def _name(composite: Composite) -> str:
    return str(composite.target).split(".")[1].strip("_")
