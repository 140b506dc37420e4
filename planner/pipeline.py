"""The order of stages: capture, normalize, profile, rank, cover, plan, rewrite, verify, race.

Each stage is a function elsewhere; this is the only file that knows what follows what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from torch.export import ExportedProgram

from fusion_kernels.rule import Stage
from planner.bench import FUSED, NORMALIZED, Race, contestants, one_forward, race
from planner.cost.devices import device_for
from planner.cost.families import is_work
from planner.fusable_time import fusable_time
from planner.fusion.module import FusedModule, Packable
from planner.fusion.precision import require_precision
from planner.graph.export import capture as export
from planner.graph.export import second_program
from planner.graph.op_graph import OpGraph, OpKey
from planner.graph.twin import twin_of
from planner.graph.view import op_graph
from planner.outcome import failure, outcomes
from planner.passes.normalize import NORMALIZE
from planner.passes.runner import run_passes
from planner.placement import device_of
from planner.planning import planned
from planner.profile.measure import measure as measure_profile
from planner.profile.untouched import fresh_inputs, restored
from planner.progress import SILENT, Progress, Timed
from planner.rank import op_ids
from planner.rank import rank as rank_operators
from planner.report.model import (
    BackendCoverage,
    NumericsRow,
    Outcome,
    PassRecord,
    Precision,
    Report,
)
from planner.rewriting import race_on, rewritten
from planner.run_report import report_of
from planner.support.cover import cover
from planner.support.current import table_for
from planner.support.tables import require_tables
from planner.timing import Pace, pace_of
from planner.verify_model import verify_whole
from planner.work import CapturedModel, Work

DEFAULT_BACKENDS = ("cpu", "cuda", "onnx")


def capture(
    module: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    *,
    out: str | Path | None = None,
) -> CapturedModel:
    """Export `module` for these inputs and normalize the program; passes are dumped to
    `out`/graphs.

    `dynamic_shapes` as torch.export takes them; where the example has 1 along an open dimension,
    two are captured. Raises `TrainingMode`, `WrongInputs`,
    `CaptureFailed`, `CaptureDiffers`.
    """
    source = export(module, tuple(args), kwargs, dynamic_shapes)
    program = source.program
    graphs = None if out is None else Path(out) / "graphs"
    before = op_graph(program)
    passes = run_passes(program, (("captured", lambda _: source.notes), *NORMALIZE), graphs)
    graph = op_graph(program)
    return CapturedModel(program, graph, passes, source, before.without(graph))


def audit(
    module: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    *,
    name: str = "",
    backends: Sequence[str] = DEFAULT_BACKENDS,
    device: str | None = None,
    measure: bool = True,
    out: str | Path | None = None,
    progress: Progress = SILENT,
) -> Report:
    """What each backend does with every operator of the model; with `measure`, weighted by time.

    Raises what `capture` raises, `UnknownBackend`, and `WrongDevice`.
    """
    require_tables(backends)
    work = _begin(module, args, kwargs, dynamic_shapes, name, device, measure, out, progress)
    return report_of(work, coverage=_coverage(work, backends, progress))


def rank(
    module: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    *,
    name: str = "",
    device: str | None = None,
    out: str | Path | None = None,
    progress: Progress = SILENT,
) -> Report:
    """The model's operators by measured time, each placed on the device's roofline.

    Raises what `capture` raises, and `WrongDevice`.
    """
    return report_of(
        _begin(module, args, kwargs, dynamic_shapes, name, device, True, out, progress)
    )


def bench(
    module: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    *,
    name: str = "",
    device: str | None = None,
    out: str | Path | None = None,
    compile_peer: bool = True,
    seed: int = 0,
    precision: Precision = "exact",
    progress: Progress = SILENT,
) -> Report:
    """The end-to-end race alone: eager, torch.compile and the fused module. Raises as `fuse`."""
    return fuse(
        module,
        args,
        kwargs,
        dynamic_shapes,
        name=name,
        device=device,
        out=out,
        compile_peer=compile_peer,
        seed=seed,
        precision=precision,
        backends=(),
        measure=False,
        progress=progress,
    ).report


def fuse(
    module: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    *,
    name: str = "",
    device: str | None = None,
    out: str | Path | None = None,
    max_fusions: int | None = None,
    compile_peer: bool = True,
    seed: int = 0,
    backends: Sequence[str] = DEFAULT_BACKENDS,
    measure: bool = True,
    precision: Precision = "exact",
    progress: Progress = SILENT,
) -> FusedModule:
    """The model with its fusable chains replaced by generated kernels, if that wins.

    Every kernel and the whole are held against float64; regions measured slower are dropped. When
    the rewritten program is faster without kernels, the module that comes back runs that one; when
    neither beats eager, the original. `report.outcome` says which. Kernels and graphs are written
    to `out` (default: a temporary folder). With `precision` "high" a value that the program casts
    to float16 or bfloat16 is not rounded within a kernel, where nothing but floating values is
    made of it. Raises as `audit`, and `UnknownPrecision`.
    """
    require_precision(precision)
    require_tables(backends)
    progress = timed = Timed(progress)
    work = _begin(module, args, kwargs, dynamic_shapes, name, device, measure, out, progress)
    coverage = _coverage(work, backends, progress)
    with progress.stage("rewrite"):
        clean, rewrites = _rewritten(work)
    work = replace(work, passes=(*work.passes, *rewrites))
    with progress.stage("plan the fusions"):
        program = second_program(clean)
        pace = _pace(work)
        plan, passes = planned(work, program, precision, max_fusions, seed, progress, pace)
    programs = {NORMALIZED: clean} | ({FUSED: program} if plan.chosen or plan.by_library else {})
    modules = {name: _bound(work, program) for name, program in programs.items()}
    refusal = modules[NORMALIZED].refusal(work.args, work.kwargs)
    runnable = {} if refusal else modules
    numerics: tuple[NumericsRow, ...] = ()
    unsound = refusal
    if FUSED in runnable:
        with progress.stage("verify the whole model"):
            numerics = _verify(work, runnable[FUSED], work.name, seed, plan.unrounded)
    with progress.stage(f"race {contestants(runnable, compile_peer=compile_peer)}"):
        raced = _race(work, runnable, compile_peer=compile_peer)
    if refusal:
        said = f"the captured program does not take its own example: {refusal}"
        outcome = Outcome("original", said)
        plan = plan.withdrawn("check", said)
    else:
        found = outcomes(plan, numerics, raced)
        outcome, rows = _checked(work, clean, seed, progress, found)
        stage: Stage = "numerics" if failure(numerics) else "speed"
        numerics += rows
        unsound = failure(rows)
        if outcome.result != FUSED:
            plan = plan.withdrawn(stage, outcome.reason)
    # Fresh: what ran for the figures above has counted in its buffers.
    returned = _bound(work, programs.get(outcome.result))
    outcome = replace(outcome, extra_weight_bytes=returned.extra_weight_bytes)
    kept = op_graph(clean) if outcome.result in programs else None
    report = report_of(
        replace(work, passes=(*work.passes, *passes)),
        coverage=coverage,
        plan=plan,
        numerics=(*plan.numerics, *numerics),
        benchmark=raced.benchmark,
        outcome=outcome,
        precision=precision,
        fusable=fusable_time(work.profile, work.graph, kept, plan),
        stages=timed.rows,
    )
    returned.report, returned.plan = report, plan
    returned.packable = _packable(programs, outcome, unsound)
    return returned


def _begin(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
    name: str,
    device: str | None,
    measure: bool,
    out: str | Path | None,
    progress: Progress,
) -> Work:
    folder = None if out is None else Path(out)
    torch_device = device_of(module, args, kwargs, device)
    with progress.stage("capture"):
        captured = capture(module, args, kwargs, dynamic_shapes, out=folder)
    args, kwargs = captured.source.args, dict(captured.source.kwargs)
    graph = OpGraph(tuple(node for node in captured.graph if is_work(node)))
    profile = None
    if measure:
        with progress.stage("profile the eager model"):
            # A twin: a forward may count or keep something in attributes of the module.
            twin = twin_of(module)
            profile = measure_profile(
                twin, args, kwargs, graph, torch_device, removed=captured.removed
            )
    with progress.stage("device figures"):
        figures = device_for(torch_device)
    return Work(
        module,
        args,
        kwargs,
        name or type(module).__name__,
        torch_device,
        figures,
        captured,
        captured.passes,
        graph,
        profile,
        folder,
    )


def _coverage(
    work: Work, backends: Sequence[str], progress: Progress
) -> dict[str, BackendCoverage]:
    rows = rank_operators(work.graph, work.profile, work.device)
    ids = op_ids(rows)
    times = {OpKey(row.op, row.shapes, row.dtypes): row.total_us for row in rows}
    found = {}
    for backend in backends:
        with progress.stage(f"coverage: {backend}"):
            found[backend] = cover(work.graph, ids, table_for(backend), times)
    return found


def _rewritten(work: Work) -> tuple[ExportedProgram, tuple[PassRecord, ...]]:
    """The captured program after the rewrites, and their records."""
    graphs = work.out / "graphs" if work.out else None
    race_of = race_on(partial(_bound, work), work.args, work.kwargs, work.torch_device)
    return rewritten(work.captured.program, race_of, graphs, len(work.passes))


def _twin(work: Work) -> nn.Module:
    return twin_of(work.module)


def _bound(work: Work, program: ExportedProgram | None) -> FusedModule:
    return FusedModule(_twin(work), program)


def _packable(programs: Mapping[str, ExportedProgram], outcome: Outcome, unsound: str) -> Packable:
    """What may be saved: never a program that was found wrong, not even to fall back to."""
    if unsound:
        return Packable(None, reason=f"the program without kernels is not sound: {unsound}")
    return Packable(programs[NORMALIZED], programs[FUSED] if outcome.result == FUSED else None)


def _checked(
    work: Work,
    clean: ExportedProgram,
    seed: int,
    progress: Progress,
    found: Sequence[Outcome],
) -> tuple[Outcome, tuple[NumericsRow, ...]]:
    """The first outcome that stands, and the checks of the program without kernels, which is
    verified when it is about to be returned: on a module of its own, because what was raced has
    counted in its buffers. The last outcome, the original, needs none.
    """
    rows: tuple[NumericsRow, ...] = ()
    for outcome in found:
        if outcome.result != NORMALIZED:
            return outcome, rows
        with progress.stage("verify the model without kernels"):
            rows = _verify(work, _bound(work, clean), f"{work.name} without kernels", seed)
        if not failure(rows):
            return outcome, rows
    raise AssertionError("the original is always among the outcomes")


def _verify(
    work: Work,
    module: FusedModule,
    subject: str,
    seed: int,
    unrounded: frozenset[str] = frozenset(),
) -> tuple[NumericsRow, ...]:
    return verify_whole(
        module,
        _twin(work),
        work.captured.program,
        work.args,
        work.kwargs,
        subject,
        work.torch_device,
        seed,
        unrounded,
    )


def _pace(work: Work) -> Pace:
    """Whether the eager model waits for the host, on a twin and copies of the inputs."""
    if not work.torch_device.startswith("cuda"):
        return "host"
    args, kwargs = fresh_inputs(work.args, work.kwargs)
    eager = _twin(work)
    with restored(eager, work.torch_device):
        return pace_of(one_forward(eager, args, kwargs), work.torch_device)


def _race(work: Work, ours: Mapping[str, FusedModule], *, compile_peer: bool) -> Race:
    """On a twin and copies of the inputs: hundreds of forwards may not count in the user's."""
    args, kwargs = fresh_inputs(work.args, work.kwargs)
    eager = _twin(work)
    with restored(eager, work.torch_device):
        return race(eager, ours, args, kwargs, work.torch_device, compile_peer=compile_peer)
