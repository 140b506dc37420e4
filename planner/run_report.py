"""What a run found, as the report holds it."""

from __future__ import annotations

from torch import Tensor
from torch.utils import _pytree as pytree

from planner.environment import environment
from planner.fusion.plan import FusionPlan
from planner.fusion.rows import fusion_rows, rejection_rows
from planner.graph.view import tensor_meta
from planner.passes.runner import count_operators
from planner.profile.model import Profile
from planner.rank import rank
from planner.report.model import (
    BackendCoverage,
    Benchmark,
    CaptureInfo,
    FusableTime,
    ModelInfo,
    NumericsRow,
    Outcome,
    Precision,
    ProfileInfo,
    Report,
    StageRow,
)
from planner.work import Work

_NO_RACE = Benchmark(())
_UNMEASURED = ProfileInfo("unknown", 0, None, None, None)


def report_of(
    work: Work,
    *,
    coverage: dict[str, BackendCoverage] | None = None,
    plan: FusionPlan | None = None,
    numerics: tuple[NumericsRow, ...] = (),
    benchmark: Benchmark = _NO_RACE,
    outcome: Outcome | None = None,
    precision: Precision = "exact",
    fusable: FusableTime | None = None,
    stages: tuple[StageRow, ...] = (),
) -> Report:
    """The report of a run; what a verb has not done stays empty."""
    profile = work.profile
    return Report(
        environment=environment(work.torch_device),
        model=_model_info(work),
        capture=CaptureInfo("export", 1, (), _first_count(work), work.passes),
        profile=_UNMEASURED if profile is None else _profile_info(profile),
        ops=rank(work.graph, profile, work.device),
        unlinked_share=None if profile is None else profile.unlinked_share,
        coverage=coverage or {},
        fusions=fusion_rows(plan) if plan else (),
        rejections=rejection_rows(plan.rejected) if plan else (),
        numerics=numerics,
        benchmark=benchmark,
        outcome=outcome,
        precision=precision,
        fusable=fusable,
        stages=stages,
    )


def _first_count(work: Work) -> int:
    return work.passes[0].nodes_before if work.passes else count_operators(work.captured.program)


def _profile_info(profile: Profile) -> ProfileInfo:
    return ProfileInfo(
        kind="measured",
        iterations=profile.iterations,
        wall_us=profile.wall.median_us,
        operators_us=profile.operators_us,
        linked_us=profile.linked_us,
        unlinked=tuple((row.name, row.timing.median_us) for row in profile.unlinked),
    )


def _model_info(work: Work) -> ModelInfo:
    parameters = list(work.module.parameters())
    dtypes = sorted({str(p.dtype).removeprefix("torch.") for p in parameters})
    leaves, _ = pytree.tree_flatten_with_path((work.args, work.kwargs))
    inputs = {
        _input_name(pytree.keystr(path)): str(tensor_meta(leaf))
        for path, leaf in leaves
        if isinstance(leaf, Tensor)
    }
    return ModelInfo(
        name=work.name,
        cls=type(work.module).__name__,
        parameters=sum(p.numel() for p in parameters),
        parameter_bytes=sum(p.numel() * p.element_size() for p in parameters),
        dtype=", ".join(dtypes) or "none",
        inputs=inputs,
    )


def _input_name(path: str) -> str:
    """ "[1]['input_ids']" -> "input_ids", "[0][0]" -> "0"."""
    return path[3:].strip("[]'").replace("']['", ".").replace("][", ".")
