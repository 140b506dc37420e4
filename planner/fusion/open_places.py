"""The places of a program with open sizes: found at the example's sizes, kept where the same
kernel text serves every size.

A kernel takes its sizes and strides when it is launched. What its text says beside that, such as
which dimensions broadcast or merge, must not depend on them: so each region is lowered and emitted
at two sets of sizes, and the texts must be equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import fx
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from fusion_kernels.builder import NotLowered
from fusion_kernels.emit.layout import NotEmitted
from fusion_kernels.emit.source import KernelSource, emit
from fusion_kernels.rule import Mismatch
from planner.fusion.candidate import Candidate
from planner.fusion.lower import LoweredRegion, lower
from planner.graph.at_sizes import at_sizes
from planner.graph.open_sizes import OpenSizes

Places = tuple[tuple[Candidate, ...], ...]
Find = Callable[[ExportedProgram], tuple[Places, tuple[Mismatch, ...]]]

# Factors of the example's sizes for the second lowering: it keeps what divides them, and no two
# sizes are equal that were not the same one.
_FACTORS = (101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151, 157, 163, 167, 173, 179)


def find_open_places(
    program: ExportedProgram, found: OpenSizes, find: Find
) -> tuple[Places, tuple[Mismatch, ...]]:
    """What `find` finds in a copy of the program at its example's sizes, less what does not serve
    every size; nodes have the names that they have in `program`.
    """
    args, kwargs = program.example_inputs or ((), {})
    own = found.sizes_of(pytree.tree_leaves((args, kwargs)))
    assert not isinstance(own, str), own
    if len(own) > len(_FACTORS):
        return (), ()
    fixed = at_sizes(program, own)
    places, rejected = find(fixed)
    factors = zip(own, _FACTORS, strict=False)
    other = _by_name(at_sizes(program, {symbol: own[symbol] * n for symbol, n in factors}).graph)
    kept: list[tuple[Candidate, ...]] = []
    refused: list[Mismatch] = []
    for ways in places:
        opened = [_opened(way, other) for way in ways]
        good = tuple(way for way in opened if isinstance(way, Candidate))
        if good:
            kept.append(good)
        else:
            reason = next(str(way) for way in opened)
            refused.append(Mismatch(ways[0].plan.rule, "check", reason, ways[0].nodes[-1]))
    return tuple(kept), (*rejected, *refused)


def in_graph(graph: fx.Graph, lowered: LoweredRegion) -> LoweredRegion:
    """The same region in terms of the nodes that have the same names in `graph`."""
    named = _by_name(graph)

    def here(nodes: Sequence[fx.Node]) -> tuple[fx.Node, ...]:
        return tuple(named[node.name] for node in nodes)

    return replace(
        lowered,
        inputs=here(lowered.inputs),
        nodes=here(lowered.nodes),
        outputs=here(lowered.outputs),
    )


def _opened(way: Candidate, other: dict[str, fx.Node]) -> Candidate | str:
    """The way with its region's open dimensions marked; the reason where one text does not serve
    all sizes.
    """
    region = way.lowered.region
    pairs = zip(way.lowered.inputs, region.inputs, strict=True)
    names = {node.name: item.name for node, item in pairs}
    try:
        nodes = [other[node.name] for node in way.lowered.nodes]
        again = lower(nodes, region.name, lambda node: names.get(node.name, node.name)).region
        dims = enumerate(zip(region.shape, again.shape, strict=True))
        changed = tuple(dim for dim, (own, size) in dims if own != size)
        region, again = (replace(item, open_dims=changed) for item in (region, again))
        source = emit(region, way.provenance)
        second = emit(again, way.provenance, source.config)
    except (NotLowered, NotEmitted, ValueError) as error:
        return f"not for every size: {error}"
    if _code(source) != _code(second):
        return "its kernel would be another one at other sizes"
    return replace(way, lowered=replace(way.lowered, region=region), source=source)


def _code(source: KernelSource) -> str:
    """The text less its header and the row's length in the summary."""
    return re.sub(r" over rows of \d+", "", source.text.split('"""', 2)[2])


def _by_name(graph: fx.Graph) -> dict[str, fx.Node]:
    return {node.name: node for node in graph.nodes}
