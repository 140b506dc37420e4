"""Plans the fusions of a rewritten program and puts the chosen ones into it."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from torch.export import ExportedProgram

from planner.fusion.plan import FusionPlan, make_plan
from planner.fusion.precision import mark_lossy_casts
from planner.fusion.rewrite import replace_regions
from planner.graph.autocast import without_autocast
from planner.passes.linear_bias import merge_linear_bias, split_linear_bias
from planner.passes.reuse_buffers import reuse_buffers
from planner.passes.runner import Pass, run_passes
from planner.progress import Progress
from planner.report.model import PassRecord, Precision
from planner.work import Work


def planned(
    work: Work,
    program: ExportedProgram,
    precision: Precision,
    most: int | None,
    seed: int,
    progress: Progress,
) -> tuple[FusionPlan, tuple[PassRecord, ...]]:
    """The plan for `program`, which has the chosen kernels in it afterwards."""
    kernels = (work.out or Path(tempfile.mkdtemp(prefix="fuseplan-"))) / "kernels"
    marking = {"high": (("mark_lossy_casts", mark_lossy_casts),)}.get(precision, ())
    first = (("split_linear_bias", split_linear_bias), *marking)
    passes = _fusion_passes(work, program, first, ())
    with without_autocast():
        plan = make_plan(
            program,
            work.device,
            work.torch_device,
            kernels,
            max_fusions=most,
            seed=seed,
            progress=progress,
        )
    passes += _fusion_passes(
        work,
        program,
        (
            ("fuse", _rewriter(plan)),
            ("merge_linear_bias", merge_linear_bias),
            ("reuse_buffers", reuse_buffers),
        ),
        passes,
    )
    return plan, passes


def _fusion_passes(
    work: Work,
    program: ExportedProgram,
    passes: Sequence[tuple[str, Pass]],
    earlier: Sequence[PassRecord],
) -> tuple[PassRecord, ...]:
    graphs = work.out / "graphs" if work.out else None
    return run_passes(program, passes, graphs, len(work.passes) + len(earlier))


def _rewriter(plan: FusionPlan) -> Pass:
    """The pass that puts the chosen kernels into the graph."""

    def fuse_regions(program: ExportedProgram) -> tuple[str, ...]:
        chosen = [(fusion.candidate.lowered, fusion.operator.overload) for fusion in plan.chosen]
        replace_regions(program.graph, chosen)
        names = Counter(fusion.operator.name for fusion in plan.chosen)
        return tuple(f"{count} x {name}" for name, count in sorted(names.items()))

    return fuse_regions
