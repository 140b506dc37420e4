"""The places of a program with open sizes: found at the example's sizes, kept where the same kernel
text serves every size.

A kernel takes its sizes and strides when it is launched. What its text says beside that, such as
which dimensions broadcast or merge, must not depend on them: so each region is lowered and emitted
at two sets of sizes, and the texts must be equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import fx
from torch.export import ExportedProgram

from fusion_kernels.builder import NotLowered
from fusion_kernels.emit.layout import NotEmitted
from fusion_kernels.emit.source import KernelSource, emit
from planner.fusion.candidate import Candidate
from planner.fusion.lower import lower
from planner.fusion.lowered import LoweredRegion
from planner.fusion.open_graph import in_program
from planner.graph.at_sizes import at_sizes, by_name, two_sizes
from planner.graph.open_sizes import OpenSizes


@dataclass(frozen=True, slots=True)
class Opening:
    """A program with open sizes, and the nodes by name of a copy at other sizes than those at which
    places are looked for.
    """

    program: ExportedProgram
    other: Mapping[str, fx.Node]


def opening_of(program: ExportedProgram, found: OpenSizes) -> tuple[ExportedProgram, Opening]:
    """A copy of the program at its example's sizes, to look for places in; nodes have the names
    that they have in `program`.
    """
    own, other = two_sizes(program, found)
    return at_sizes(program, own), Opening(program, by_name(at_sizes(program, other).graph))


def opened(way: Candidate, opening: Opening) -> Candidate:
    """The way with its region's open dimensions marked, and its region at the other sizes; with a
    refusal where one text does not serve all sizes.
    """
    found = _opened(way, opening.program, opening.other)
    return found if isinstance(found, Candidate) else replace(way, refusal=found)


def _opened(
    way: Candidate, program: ExportedProgram, other: Mapping[str, fx.Node]
) -> Candidate | str:
    own, region = way.lowered, way.lowered.region
    names: dict[str, str] = {}
    for read, item in zip(own.reads, region.inputs, strict=True):
        names.setdefault(own.inputs[read.source].name, item.name)
    try:
        nodes = [other[node.name] for node in own.nodes]
        again = lower(nodes, region.name, lambda node: names.get(node.name, node.name))
        if _form(own) != _form(again):
            return "its tensors would lie in another way at other sizes"
        dims = enumerate(zip(region.shape, again.region.shape, strict=True))
        changed = tuple(dim for dim, (size, changed) in dims if size != changed)
        source = emit(replace(region, open_dims=changed), way.provenance)
        second = emit(replace(again.region, open_dims=changed), way.provenance, source.config)
        own = replace(own, region=source.region)
        found = replace(way, lowered=own, source=source, elsewhere=again)
        in_program(program, found)
    except (NotLowered, NotEmitted) as error:
        return f"not for every size: {error}"
    return (
        "its kernel would be another one at other sizes"
        if _code(source) != _code(second)
        else found
    )


def _form(lowered: LoweredRegion) -> object:
    """Where tensors come from and go to, whatever their sizes."""
    reads = [(read.source, _operators(read.steps)) for read in lowered.reads]
    return (
        [node.name for node in (*lowered.inputs, *lowered.nodes, *lowered.outputs)],
        sorted(node.name for node in lowered.kept),
        reads,
        [_operators(steps) for steps in lowered.results],
        {node.name: dim for node, dim in lowered.tables.items()},
    )


def _operators(steps: object) -> object:
    """The views, with every size but not their number."""
    if isinstance(steps, int):
        return 0
    return [_operators(part) for part in steps] if isinstance(steps, list | tuple) else str(steps)


def _code(source: KernelSource) -> str:
    """The text less its header and the row's length in the summary."""
    return re.sub(r" over rows of \d+", "", source.text.split('"""', 2)[2])
