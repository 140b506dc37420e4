"""The order of stages: capture, normalize, profile, rank, cover, plan, rewrite, verify, race.

Each stage is a function elsewhere; this is the only file that knows what follows what.
"""

from __future__ import annotations

import copy
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.utils import _pytree as pytree

from fusion_kernels.tolerances import MIN_DRAWS
from planner.bench import Race, race
from planner.cost.devices import Device, device_for
from planner.cost.families import is_work
from planner.draws import draw_like
from planner.environment import environment
from planner.errors import FuseplanError
from planner.fusion.module import FusedModule
from planner.fusion.plan import FusionPlan, make_plan
from planner.fusion.rewrite import replace_regions
from planner.fusion.rows import fusion_rows, rejection_rows
from planner.fusion.subgraph import run_in_float64
from planner.graph.export import Captured
from planner.graph.export import capture as export
from planner.graph.op_graph import OpGraph, OpKey
from planner.graph.view import op_graph, tensor_meta
from planner.passes.linear_bias import merge_linear_bias, split_linear_bias
from planner.passes.normalize import NORMALIZE
from planner.passes.runner import Pass, count_operators, run_passes
from planner.profile.measure import measure as measure_profile
from planner.profile.model import Profile
from planner.progress import SILENT, Progress
from planner.rank import op_ids
from planner.rank import rank as rank_operators
from planner.report.model import (
    BackendCoverage,
    Benchmark,
    CaptureInfo,
    ModelInfo,
    NumericsRow,
    Outcome,
    PassRecord,
    ProfileInfo,
    Report,
)
from planner.support.cover import cover
from planner.support.current import table_for
from planner.verify import verify_model

DEFAULT_BACKENDS = ("cpu", "cuda", "onnx")
_NO_RACE = Benchmark(())
_UNMEASURED = ProfileInfo("unknown", 0, None, None, None)


class WrongDevice(FuseplanError):
    """The model does not lie where it is to be planned for."""


@dataclass(frozen=True, slots=True)
class CapturedModel:
    """A captured and normalized model: `program` to transform, `graph` to read."""

    program: ExportedProgram
    graph: OpGraph
    passes: tuple[PassRecord, ...]
    source: Captured


def capture(
    module: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    *,
    out: Path | None = None,
) -> CapturedModel:
    """Export `module` for these inputs and normalize the program; passes are dumped to
    `out`/graphs.

    `dynamic_shapes` as torch.export takes them. Raises `TrainingMode`, `WrongInputs`,
    `CaptureFailed`, `CaptureDiffers`.
    """
    source = export(module, tuple(args), kwargs, dynamic_shapes)
    program = source.program
    graphs = out / "graphs" if out else None
    passes = run_passes(program, (("captured", _nothing), *NORMALIZE), graphs)
    return CapturedModel(program, op_graph(program), passes, source)


def audit(
    module: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str = "",
    backends: Sequence[str] = DEFAULT_BACKENDS,
    device: str | None = None,
    measure: bool = True,
    out: Path | None = None,
    progress: Progress = SILENT,
) -> Report:
    """What each backend does with every operator of the model; with `measure`, weighted by time.

    Raises what `capture` raises, `UnknownBackend`, and `WrongDevice`.
    """
    work = _begin(module, args, kwargs, name, device, measure, out, progress)
    return _report(work, coverage=_coverage(work, backends, progress))


def rank(
    module: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str = "",
    device: str | None = None,
    out: Path | None = None,
    progress: Progress = SILENT,
) -> Report:
    """The model's operators by measured time, each placed on the device's roofline.

    Raises what `capture` raises, and `WrongDevice`.
    """
    return _report(_begin(module, args, kwargs, name, device, True, out, progress))


def bench(
    module: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str = "",
    device: str | None = None,
    out: Path | None = None,
    compile_peer: bool = True,
    seed: int = 0,
    progress: Progress = SILENT,
) -> Report:
    """The end-to-end race alone: eager, torch.compile and the fused module. Raises as `fuse`."""
    return fuse(
        module,
        args,
        kwargs,
        name=name,
        device=device,
        out=out,
        compile_peer=compile_peer,
        seed=seed,
        backends=(),
        measure=False,
        progress=progress,
    ).report


def fuse(
    module: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str = "",
    device: str | None = None,
    out: Path | None = None,
    max_fusions: int | None = None,
    compile_peer: bool = True,
    seed: int = 0,
    backends: Sequence[str] = DEFAULT_BACKENDS,
    measure: bool = True,
    progress: Progress = SILENT,
) -> FusedModule:
    """The model with its fusable chains replaced by generated kernels, if that wins.

    Every kernel and the whole are held against float64; regions measured slower are dropped; when
    the whole does not beat eager, the module that comes back runs the original, and
    `report.outcome` says so. Kernels and graphs are written to `out` (default: a temporary
    folder). Raises as `audit`.
    """
    work = _begin(module, args, kwargs, name, device, measure, out, progress)
    coverage = _coverage(work, backends, progress)
    reference = copy.deepcopy(work.captured.program.graph_module)
    kernels = (out or Path(tempfile.mkdtemp(prefix="fuseplan-"))) / "kernels"
    with progress.stage("plan the fusions"):
        passes = _fusion_passes(work, ("split_linear_bias", split_linear_bias))
        plan = make_plan(
            work.captured.program,
            work.device,
            work.torch_device,
            kernels,
            max_fusions=max_fusions,
            seed=seed,
            progress=progress,
        )
        passes += _fusion_passes(
            work, ("fuse", _rewriter(plan)), ("merge_linear_bias", merge_linear_bias)
        )
    fused = FusedModule(work.captured.source.twin, work.captured.program)
    with progress.stage("verify the whole model"):
        numerics = _verify_whole(work, fused, reference, seed)
    with progress.stage("race eager, torch.compile and the fused model"):
        raced = race(
            module,
            fused,
            work.args,
            work.kwargs,
            work.torch_device,
            compile_peer=compile_peer,
        )
    outcome = _outcome(plan, numerics, raced)
    report = _report(
        replace(work, passes=(*work.passes, *passes)),
        coverage=coverage,
        plan=plan,
        numerics=(*plan.numerics, *numerics),
        benchmark=raced.benchmark,
        outcome=outcome,
    )
    if outcome.result == "original":
        fused = FusedModule(work.captured.source.twin, None)
    fused.report, fused.plan = report, plan
    return fused


@dataclass(frozen=True, slots=True)
class _Work:
    """What every verb starts from."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    name: str
    torch_device: str
    device: Device
    captured: CapturedModel
    passes: tuple[PassRecord, ...]
    graph: OpGraph
    profile: Profile | None
    out: Path | None


def _begin(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    name: str,
    device: str | None,
    measure: bool,
    out: Path | None,
    progress: Progress,
) -> _Work:
    torch_device = _device_of(module, args, kwargs, device)
    with progress.stage("capture"):
        captured = capture(module, args, kwargs, out=out)
    graph = OpGraph(tuple(node for node in captured.graph if is_work(node)))
    profile = None
    if measure:
        with progress.stage("profile the eager model"):
            profile = measure_profile(module, args, dict(kwargs or {}), graph, torch_device)
    with progress.stage("device figures"):
        figures = device_for(torch_device)
    return _Work(
        module,
        tuple(args),
        dict(kwargs or {}),
        name or type(module).__name__,
        torch_device,
        figures,
        captured,
        captured.passes,
        graph,
        profile,
        out,
    )


def _device_of(module: nn.Module, args: Any, kwargs: Any, device: str | None) -> str:
    """The one device that weights and inputs lie on.

    Raises `WrongDevice` when there are several, or it is not the one asked for.
    """
    tensors = [*module.parameters(), *module.buffers(), *pytree.tree_leaves((args, kwargs))]
    found = sorted({str(t.device) for t in tensors if isinstance(t, Tensor)})
    if len(found) > 1:
        raise WrongDevice(
            f"The model and its inputs lie on several devices ({', '.join(found)}). "
            "Move them to one before planning."
        )
    actual = found[0] if found else device or "cpu"
    wanted = torch.device(device) if device else None
    if wanted is not None and wanted.type != torch.device(actual).type:
        raise WrongDevice(
            f"The model lies on {actual}, not on {device}. Move the model and its inputs there "
            f"first: model.to('{device}')."
        )
    return actual


def _coverage(
    work: _Work, backends: Sequence[str], progress: Progress
) -> dict[str, BackendCoverage]:
    rows = rank_operators(work.graph, work.profile, work.device)
    ids = op_ids(rows)
    times = {OpKey(row.op, row.shapes, row.dtypes): row.total_us for row in rows}
    found = {}
    for backend in backends:
        with progress.stage(f"coverage: {backend}"):
            found[backend] = cover(work.graph, ids, table_for(backend), times)
    return found


def _nothing(_: ExportedProgram) -> tuple[str, ...]:
    return ()


def _fusion_passes(work: _Work, *passes: tuple[str, Pass]) -> tuple[PassRecord, ...]:
    graphs = work.out / "graphs" if work.out else None
    already = {"split_linear_bias": 0, "fuse": 1}[passes[0][0]]
    return run_passes(work.captured.program, passes, graphs, len(work.passes) + already)


def _rewriter(plan: FusionPlan) -> Pass:
    """The pass that puts the chosen kernels into the graph."""

    def fuse_regions(program: ExportedProgram) -> tuple[str, ...]:
        chosen = [(fusion.candidate.lowered, fusion.operator.overload) for fusion in plan.chosen]
        replace_regions(program.graph, chosen)
        names = Counter(fusion.operator.name for fusion in plan.chosen)
        return tuple(f"{count} x {name}" for name, count in sorted(names.items()))

    return fuse_regions


def _verify_whole(
    work: _Work, fused: FusedModule, reference: fx.GraphModule, seed: int
) -> tuple[NumericsRow, ...]:
    draws = [draw_like(work.args, work.kwargs, seed + 1000 + n) for n in range(MIN_DRAWS)]
    program = work.captured.program
    eager = work.captured.source.twin
    lifted = _lifted(program, eager)
    kinds = [spec.kind for spec in program.graph_signature.output_specs]

    def exact(draw: Any) -> list[Tensor]:
        leaves = [leaf for leaf in pytree.tree_leaves(draw) if leaf is not None]
        values = run_in_float64(reference, [*lifted, *leaves])
        return [
            value
            for value, kind in zip(values, kinds, strict=True)
            if kind is OutputKind.USER_OUTPUT and isinstance(value, Tensor)
        ]

    def run(model: nn.Module) -> Any:
        def call(draw: Any) -> list[Tensor]:
            result = model(*draw[0], **draw[1])
            return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]

        return call

    return verify_model(run(fused), run(eager), exact, draws, work.name)


def _lifted(program: ExportedProgram, twin: nn.Module) -> list[Tensor]:
    """Weights and constants in the order of the program's placeholders."""
    state = {
        **dict(twin.named_parameters(remove_duplicate=False)),
        **dict(twin.named_buffers(remove_duplicate=False)),
    }
    targets = [spec.target for spec in program.graph_signature.input_specs if spec.target]
    return [state[name] if name in state else program.constants[name] for name in targets]


def _outcome(plan: FusionPlan, numerics: Sequence[NumericsRow], raced: Race) -> Outcome:
    failed = [row for row in numerics if not row.passed]
    if failed:
        return Outcome("original", f"the fused model fails a numerics check: {failed[0].measure}")
    against = raced.against_eager
    assert against is not None
    interval = f"{against.ratio:.3f}x eager, 95 % interval {against.low:.3f}-{against.high:.3f}"
    kept = f"{len(plan.chosen)} of {len(plan.fusions)} fusions kept"
    if against.verdict == "wins":
        return Outcome("fused", f"the fused model wins: {interval}; {kept}")
    return Outcome("original", f"the fused model does not win ({interval}); the original is kept")


def _report(
    work: _Work,
    *,
    coverage: dict[str, BackendCoverage] | None = None,
    plan: FusionPlan | None = None,
    numerics: tuple[NumericsRow, ...] = (),
    benchmark: Benchmark = _NO_RACE,
    outcome: Outcome | None = None,
) -> Report:
    profile = work.profile
    return Report(
        environment=environment(work.torch_device),
        model=_model_info(work),
        capture=CaptureInfo("export", 1, (), _first_count(work), work.passes),
        profile=_UNMEASURED if profile is None else _profile_info(profile),
        ops=rank_operators(work.graph, profile, work.device),
        unlinked_share=None if profile is None else profile.unlinked_share,
        coverage=coverage or {},
        fusions=fusion_rows(plan) if plan else (),
        rejections=rejection_rows(plan.rejected) if plan else (),
        numerics=numerics,
        benchmark=benchmark,
        outcome=outcome,
    )


def _first_count(work: _Work) -> int:
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


def _model_info(work: _Work) -> ModelInfo:
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
