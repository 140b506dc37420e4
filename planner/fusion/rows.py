"""A fusion plan as rows of the report."""

from __future__ import annotations

from collections.abc import Sequence

from fusion_kernels.rule import Mismatch
from planner.fusion.plan import Fusion, FusionPlan
from planner.report.model import FusionRow, RejectionRow


def fusion_rows(plan: FusionPlan) -> tuple[FusionRow, ...]:
    """One row a candidate, in graph order. Times are medians of the region, with the linear where
    its bias moves into the kernel."""
    return tuple(_fusion_row(fusion) for fusion in plan.fusions)


def rejection_rows(rejected: Sequence[Mismatch]) -> tuple[RejectionRow, ...]:
    """One row a place that was not fused."""
    return tuple(RejectionRow(item.rule, item.stage, item.reason, item.node) for item in rejected)


def _fusion_row(fusion: Fusion) -> FusionRow:
    candidate, judged = fusion.candidate, fusion.judged
    return FusionRow(
        name=candidate.lowered.region.name,
        rule=candidate.plan.rule,
        nodes=candidate.nodes,
        kernel=fusion.operator.name,
        module=candidate.module,
        source=candidate.source_line,
        predicted_us=candidate.predicted_us,
        before_us=judged.before.median_us if judged.before else None,
        measured_us=judged.after.median_us if judged.after else None,
        kept=fusion.kept,
        reason=fusion.reason,
        trials=judged.trials,
        unrounded=tuple(node.name for node in candidate.lowered.unrounded),
    )
