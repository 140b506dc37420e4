"""The pass that puts a plan's chosen kernels into the graph."""

from __future__ import annotations

from collections import Counter

from torch.export import ExportedProgram

from planner.fusion.open_graph import in_program
from planner.fusion.plan import FusionPlan
from planner.fusion.rewrite import replace_regions
from planner.passes.runner import Pass


def put_in(plan: FusionPlan) -> Pass:
    """One call of a kernel in the place of each region that is kept; the notes count them."""

    def fuse_regions(program: ExportedProgram) -> tuple[str, ...]:
        chosen = [
            (in_program(program, fusion.candidate), fusion.operator.overload)
            for fusion in plan.chosen
        ]
        replace_regions(program.graph, chosen)
        names = Counter(fusion.operator.name for fusion in plan.chosen)
        return tuple(f"{count} x {name}" for name, count in sorted(names.items()))

    return fuse_regions
