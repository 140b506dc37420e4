"""Chooses what to fuse: every region emitted, verified and raced; the slower and the wrong
rejected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram

from fusion_kernels.emit.source import KernelSource
from fusion_kernels.library import FusedOperator, define
from fusion_kernels.rule import Mismatch, Stage
from planner.cost.devices import Device
from planner.fusion.candidate import Candidate
from planner.fusion.contest import (
    BEFORE,
    LIBRARY,
    Course,
    best_way,
    decide,
    race_place,
    shown,
    trial_of,
)
from planner.fusion.epilogue import Epilogue, epilogue_of, right_epilogue_of
from planner.fusion.equal_places import around_key, kernel_key
from planner.fusion.places import fitting, survey_places
from planner.fusion.settle import Settled, settle
from planner.fusion.tune import tune
from planner.passes.composites import shares_of
from planner.progress import Progress
from planner.report.model import NumericsRow, Trial
from planner.timing import Pace, Timing, compare
from planner.verify import verify_region

_RUNS = "runs"
"""The check that a kernel failed when it raised an exception."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What holds for every place with the same kernels: the way chosen, numerics, times, verdict;
    with `library` the library's own form of the place was the fastest.
    """

    chosen: int
    operators: tuple[FusedOperator, ...]
    numerics: tuple[NumericsRow, ...]
    before: Timing | None
    after: Timing | None
    trials: tuple[Trial, ...]
    kept: bool
    stage: Stage
    reason: str
    library: bool = False

    @property
    def saved_us(self) -> float:
        """Median time of what ran before less that of the kernel; 0 where none was taken."""
        if self.before is None or self.after is None:
            return 0.0
        return self.before.median_us - self.after.median_us


@dataclass(frozen=True, slots=True)
class Fusion:
    """A candidate with its operator and what was measured. `reason` says why it is kept or not,
    `epilogue` is the library's form of the place where that beat the kernel.
    """

    candidate: Candidate
    operator: FusedOperator
    judged: Judged
    kept: bool
    reason: str
    epilogue: Epilogue | None


@dataclass(frozen=True, slots=True)
class FusionPlan:
    """All places in graph order, kept or not, those that did not become one, and the numerics.

    `parts` holds for each part of a composite, by name, the composite's name and the part's share
    of it.
    """

    fusions: tuple[Fusion, ...]
    rejected: tuple[Mismatch, ...]
    numerics: tuple[NumericsRow, ...]
    parts: Mapping[str, tuple[str, float]] = field(default_factory=dict)

    @property
    def chosen(self) -> tuple[Fusion, ...]:
        return tuple(fusion for fusion in self.fusions if fusion.kept)

    @property
    def by_library(self) -> tuple[Epilogue, ...]:
        """What the library's own form takes, because it beat the kernel."""
        taken = {name for fusion in self.chosen for name in fusion.candidate.nodes}
        return tuple(
            f.epilogue for f in self.fusions if f.epilogue and taken.isdisjoint(f.candidate.nodes)
        )

    @property
    def unrounded(self) -> frozenset[str]:
        """The casts that the chosen kernels leave out."""
        return frozenset(n.name for f in self.chosen for n in f.candidate.lowered.unrounded)

    def withdrawn(self, stage: Stage, reason: str) -> FusionPlan:
        """The same plan with nothing kept, because the whole did not stand up to `stage`."""
        fusions = tuple(
            replace(
                f,
                kept=False,
                reason=f"{reason} (alone: {f.reason})" if f.kept else f.reason,
                epilogue=None,
            )
            for f in self.fusions
        )
        rejected = tuple(
            Mismatch(f.candidate.plan.rule, stage, reason, f.candidate.nodes[-1])
            for f in self.chosen
        )
        return replace(self, fusions=fusions, rejected=(*self.rejected, *rejected))


def make_plan(
    program: ExportedProgram,
    device: Device,
    torch_device: str,
    kernels: Path,
    *,
    max_fusions: int | None,
    seed: int,
    progress: Progress,
    pace: Pace = "host",
) -> FusionPlan:
    """Emit, verify and race every place; places with equal kernels, that write over the same
    input, are judged once.

    A kernel that fails a numerics check is never kept. One that saves traffic is kept unless it is
    measured slower; one that does not is kept only when it wins. Where the library has the place
    in a form of its own that is faster, that one is used. Where a region is not kept, what
    overlapped it has its turn. `pace` is the model's: the races count what the host does for a
    kernel where it sets the pace.
    """
    places = survey_places(program, device, torch_device)
    course = Course(torch_device, seed, pace)
    judged: dict[Any, Judged] = {}
    verified: dict[Any, tuple[FusedOperator, tuple[NumericsRow, ...]]] = {}
    found: dict[int, Fusion] = {}

    def judge(bits: int) -> float | None:
        (all_ways,) = places.ways((bits,))
        ways = fitting(all_ways) or all_ways[:1]
        key = tuple((kernel_key(way, torch_device), around_key(way)) for way in ways)
        if key not in judged:
            with progress.stage(f"verify and time {ways[0].source.name}"):
                judged[key] = _judge(ways, course, kernels, verified, progress)
        found[bits] = _fusion(ways, judged[key], torch_device)
        return judged[key].saved_us if judged[key].kept else None

    settled = settle(places.survey, judge)
    fusions = _settled(found, settled, max_fusions)
    dropped = [
        Mismatch(f.candidate.plan.rule, f.judged.stage, f.reason, f.candidate.nodes[-1])
        for f in fusions
        if not f.kept
    ]
    rows = {row: None for item in judged.values() for row in item.numerics}
    rejected = (*places.refusals(settled.kept, settled.tried), *dropped)
    return FusionPlan(fusions, rejected, tuple(rows), shares_of(program.graph))


def _settled(found: Mapping[int, Fusion], settled: Settled, most: int | None) -> tuple[Fusion, ...]:
    """All fusions tried, in graph order, each with what became of it."""
    kept = set(settled.kept)
    fusions: list[Fusion] = []
    for bits in sorted(found, key=lambda bits: (bits.bit_length(), bits)):
        fusion = found[bits]
        reason = fusion.reason
        others = [found[other] for other in settled.instead.get(bits, ())]
        if others:
            names = dict.fromkeys(other.candidate.lowered.region.name for other in others)
            reason += f"; tried in its place: {', '.join(names)}"
        elif fusion.kept and bits not in kept:
            reason = f"what overlaps it saves more (alone: {reason})"
        stays = bits in kept
        if stays and most is not None and sum(item.kept for item in fusions) >= most:
            stays, reason = False, f"left out by --max-fusions {most}"
        fusions.append(replace(fusion, kept=stays, reason=reason))
    return tuple(fusions)


def _fusion(ways: Sequence[Candidate], judged: Judged, device: str) -> Fusion:
    way, operator = ways[judged.chosen], judged.operators[judged.chosen]
    epilogue = epilogue_of(ways[0].lowered.nodes, device) if judged.library else None
    return Fusion(way, operator, judged, judged.kept, judged.reason, epilogue)


def _judge(
    ways: Sequence[Candidate],
    course: Course,
    kernels: Path,
    verified: dict[Any, tuple[FusedOperator, tuple[NumericsRow, ...]]],
    progress: Progress,
) -> Judged:
    """Verify, tune and race one place. `verified` holds the kernels seen at another
    place.
    """
    if ways[0].refusal:
        unused = (define(ways[0].source, write_kernel(ways[0].source, kernels)),)
        return Judged(0, unused, (), None, None, (), False, "check", ways[0].refusal)
    device, seed = course.device, course.seed
    operators: list[FusedOperator] = []
    numerics: list[tuple[NumericsRow, ...]] = []
    trials: tuple[Trial, ...] = ()
    for way in ways:
        key = kernel_key(way, device)
        if key not in verified:
            found, verified[key] = _verified(way, device, kernels, seed, progress)
            trials += found
        operator, rows_of_it = verified[key]
        operators.append(operator)
        numerics.append(rows_of_it)
    rows = tuple(row for found in numerics for row in found)
    right = [index for index, found in enumerate(numerics) if all(row.passed for row in found)]
    if not right:
        failed = next(row for row in rows if not row.passed)
        reason = f"numerics: {failed.measure} is over its limit ({failed.case})"
        reason = f"it does not run: {failed.case}" if failed.measure == _RUNS else reason
        return Judged(0, tuple(operators), rows, None, None, (), False, "numerics", reason)
    rival = right_epilogue_of(ways[0].lowered.nodes, device)
    with progress.stage("race"):
        best, contest = best_way(ways, operators, right, course)
        # The linear takes part only where its bias moves: beside it a norm is lost in the noise.
        moves_bias = bool(ways[best].linears) and not ways[best].biases
        one = (ways[best:][:1], operators[best:][:1])
        timings = race_place(*one, course, with_linears=moves_bias)
        with_product = race_place(*one, course, with_linears=True, rival=rival) if rival else {}
    kept, reason = decide(ways[best], compare(timings[BEFORE], timings[ways[best].way]))
    other = with_product.get(ways[best].way if kept else BEFORE)
    beaten = compare(other, with_product[LIBRARY]) if other else None
    library = beaten is not None and beaten.verdict == "wins"
    if beaten and library:
        kept, reason = False, f"the library's product with this activation is {shown(beaten)}"
        contest = (*contest, *(trial_of(name, with_product[name]) for name in with_product))
    return Judged(
        best,
        tuple(operators),
        rows,
        timings[BEFORE],
        timings[ways[best].way],
        (*trials, *contest),
        kept,
        "speed",
        reason,
        library,
    )


def _verified(
    way: Candidate, device: str, kernels: Path, seed: int, progress: Progress
) -> tuple[tuple[Trial, ...], tuple[FusedOperator, tuple[NumericsRow, ...]]]:
    """Define the kernel, tune it on CUDA, and verify what runs from then on. A tuned text that
    fails, and a kernel that cannot be tuned, give way to the default one.
    """
    operator = define(way.source, write_kernel(way.source, kernels))
    trials: tuple[Trial, ...] = ()
    if device.startswith("cuda"):
        with progress.stage("tune"):
            trials = _tuned(way, operator, kernels, device, seed, progress)
    with progress.stage("verify"):
        rows = _checked(way, operator, device, seed)
    if all(row.passed for row in rows) or operator.source is way.source:
        return trials, (operator, rows)
    operator.use(way.source, write_kernel(way.source, kernels))
    with progress.stage("verify"):
        return trials, (operator, _checked(way, operator, device, seed))


def _tuned(
    way: Candidate,
    operator: FusedOperator,
    kernels: Path,
    device: str,
    seed: int,
    progress: Progress,
) -> tuple[Trial, ...]:
    """The trials; none where the kernel raises, which its checks will say."""
    try:
        return tune(way, operator, kernels, device, seed, progress)
    except Exception:
        return ()


def _checked(
    way: Candidate, operator: FusedOperator, device: str, seed: int
) -> tuple[NumericsRow, ...]:
    """The kernel's checks; one that raises is a failure of that kernel, and no other suffers."""
    try:
        return verify_region(way.lowered, operator, device, seed)
    except Exception as error:
        lines = str(error).strip().splitlines()
        said = f"{type(error).__name__}: {lines[0] if lines else ''}"
        dtype = way.lowered.region.outputs[0].dtype
        return (NumericsRow(operator.name, dtype, None, None, 0.0, False, _RUNS, said),)


def write_kernel(source: KernelSource, folder: Path) -> Path:
    """Write the kernel's text to `folder`/NAME.py and return the path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{source.file_name}.py"
    path.write_text(source.text, encoding="utf-8")
    return path
