"""The pass that puts a plan into its program: kernels, and the library's forms that beat them."""

from __future__ import annotations

from collections import Counter

from torch.export import ExportedProgram

from planner.fusion.epilogue import use_epilogue
from planner.fusion.plan import FusionPlan
from planner.fusion.rewrite import replace_regions
from planner.passes.runner import Pass


def fuse_as_planned(plan: FusionPlan) -> Pass:
    """The pass for the program that the plan was made for."""

    def fuse(program: ExportedProgram) -> tuple[str, ...]:
        chosen = [(fusion.candidate.lowered, fusion.operator.overload) for fusion in plan.chosen]
        replace_regions(program.graph, chosen)
        # After the kernels, whose inputs may be nodes that now go.
        for epilogue in plan.by_library:
            use_epilogue(program.graph, epilogue)
        names = Counter(fusion.operator.name for fusion in plan.chosen)
        names.update("the library's product with an activation" for _ in plan.by_library)
        return tuple(f"{count} x {name}" for name, count in sorted(names.items()))

    return fuse
