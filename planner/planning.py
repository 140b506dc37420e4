"""Plans the fusions of a rewritten program and puts the chosen ones into it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from torch.export import ExportedProgram

from planner.fusion.apply import fuse_as_planned
from planner.fusion.contest import Course
from planner.fusion.partly_taken import without_losing_parts
from planner.fusion.plan import FusionPlan, make_plan
from planner.fusion.precision import mark_lossy_casts
from planner.graph.autocast import without_autocast
from planner.passes.composites import put_together
from planner.passes.linear_bias import merge_linear_bias, split_linear_bias
from planner.passes.reuse_buffers import reuse_buffers
from planner.passes.runner import Pass, run_passes
from planner.passes.take_apart import take_apart
from planner.progress import Progress
from planner.report.model import PassRecord, Precision
from planner.timing import Pace
from planner.work import Work


def planned(
    work: Work,
    program: ExportedProgram,
    precision: Precision,
    most: int | None,
    seed: int,
    progress: Progress,
    pace: Pace,
) -> tuple[FusionPlan, tuple[PassRecord, ...]]:
    """The plan for `program`, which has the chosen kernels in it afterwards. `pace` is that of the
    eager model.
    """
    kernels = (work.out or Path(tempfile.mkdtemp(prefix="fuseplan-"))) / "kernels"
    marking = {"high": (("mark_lossy_casts", mark_lossy_casts),)}.get(precision, ())
    apart = (("take_apart", take_apart), ("split_linear_bias", split_linear_bias))
    first = (*apart, *marking)
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
            pace=pace,
        )
        with progress.stage("race operators of which kernels took parts"):
            plan = without_losing_parts(plan, Course(work.torch_device, seed, pace))
    passes += _fusion_passes(
        work,
        program,
        (
            ("fuse", fuse_as_planned(plan)),
            ("put_together", put_together),
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
