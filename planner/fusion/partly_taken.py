"""Composites of which kernels took only some parts: the kernels with the other parts must not be
slower than the composite was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from fusion_kernels.rule import Mismatch
from planner.fusion.candidate import within
from planner.fusion.contest import Course, shown
from planner.fusion.direct import with_direct_launches
from planner.fusion.lower import is_view
from planner.fusion.plan import Fusion, FusionPlan
from planner.fusion.rewrite import replace_regions
from planner.fusion.subgraph import extract
from planner.passes.composites import Composite, composites_in, is_whole, put_back
from planner.passes.linear_bias import merge_biases
from planner.passes.reuse_buffers import reuse_inputs
from planner.timing import Comparison, compare


@dataclass(frozen=True, slots=True)
class Together:
    """Composites that share kernels, and all kernels that hold a part of one of them."""

    composites: tuple[Composite, ...]
    parts: tuple[fx.Node, ...]
    fusions: tuple[Fusion, ...]

    @property
    def nodes(self) -> list[fx.Node]:
        """Those of the kernels and the parts that are in none, in graph order."""
        held = (node for fusion in self.fusions for node in fusion.candidate.lowered.nodes)
        return sorted({*held, *self.parts})


def without_losing_parts(plan: FusionPlan, course: Course) -> FusionPlan:
    """The plan without the kernels that are slower, together with what is left of a composite, than
    the composite as it was. `put_together` then has all its parts.

    What is equal, kernels and composites, is raced once.
    """
    raced: dict[Any, Comparison] = {}
    lost: dict[str, str] = {}
    for found in partly_taken(plan):
        key = _key(found)
        if key not in raced:
            raced[key] = _race(found, course)
        if raced[key].verdict == "slower":
            lost |= {f.candidate.nodes[-1]: _reason(found, raced[key]) for f in found.fusions}
    fusions = tuple(
        replace(f, kept=False, reason=f"{lost[f.candidate.nodes[-1]]} (alone: {f.reason})")
        if f.kept and f.candidate.nodes[-1] in lost
        else f
        for f in plan.fusions
    )
    rejected = tuple(
        Mismatch(f.candidate.plan.rule, "speed", reason, node)
        for node, reason in lost.items()
        for f in plan.chosen
        if f.candidate.nodes[-1] == node
    )
    return replace(plan, fusions=fusions, rejected=(*plan.rejected, *rejected))


def partly_taken(plan: FusionPlan) -> tuple[Together, ...]:
    """The composites of which some parts are in a chosen kernel and no kernel holds all."""
    found: list[Together] = []
    for fusion in plan.chosen:
        nodes = fusion.candidate.lowered.nodes
        own = [
            item
            for item, parts in composites_in(nodes)
            if not is_whole(item, parts) and not all(map(is_view, parts))
        ]
        if not own:
            continue
        names = {item.name for item in own}
        every = composites_in([node for node in nodes[0].graph.nodes if node not in nodes])
        others = [node for item, parts in every if item.name in names for node in parts]
        now = Together(tuple(own), tuple(others), (fusion,))
        shared = [one for one in found if not names.isdisjoint(i.name for i in one.composites)]
        for one in shared:
            found.remove(one)
            now = _joined(one, now)
        found.append(now)
    return tuple(found)


def _joined(first: Together, second: Together) -> Together:
    items = {item.name: item for item in (*first.composites, *second.composites)}
    parts = dict.fromkeys((*first.parts, *second.parts))
    return Together(tuple(items.values()), tuple(parts), (*first.fusions, *second.fusions))


def _key(found: Together) -> Any:
    kernels = tuple(fusion.operator.name for fusion in found.fusions)
    nodes = found.nodes
    shapes = [(n.target, str(getattr(n.meta["val"], "shape", ""))) for n in nodes]
    return (kernels, tuple(item.target for item in found.composites), tuple(shapes))


def _race(found: Together, course: Course) -> Comparison:
    nodes = found.nodes
    whole, fused = extract(nodes), extract(nodes)
    put_back(whole.module.graph)
    merge_biases(whole.module.graph)
    whole.module.recompile()
    graph = fused.module.graph
    regions = [
        (within(fused, fusion.candidate.lowered), fusion.operator.overload)
        for fusion in found.fusions
    ]
    replace_regions(graph, regions)
    merge_biases(graph)
    reuse_inputs(graph)
    fused.module.recompile()
    fused = replace(fused, module=with_direct_launches(fused.module))
    timings = course.race({"whole": whole, "fused": fused})
    return compare(timings["whole"], timings["fused"])


def _reason(found: Together, comparison: Comparison) -> str:
    names = ", ".join(dict.fromkeys(str(item.target) for item in found.composites))
    return f"with the other parts slower than {names} whole: {shown(comparison)}"
