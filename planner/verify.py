"""Holds every generated kernel against float64 under the numerics contract.

What is verified is what will run: on CPU the compiled region and the emitted Triton text in the
interpreter (its float32 logic), on CUDA the kernel itself. The reference is the original
operators in float64, less the casts that the kernel leaves out (`--precision high`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch
from torch import Tensor, fx

from fusion_kernels.emit.source import KernelSource
from fusion_kernels.inputs import (
    InputCase,
    InputSpec,
    draw_case,
    lay_out_case,
    told_apart,
)
from fusion_kernels.ir import Region
from fusion_kernels.library import FusedOperator
from fusion_kernels.load import interpreted
from fusion_kernels.tolerances import (
    MIN_DRAWS,
    NumericsResult,
    check,
    check_ill_conditioned,
)
from planner.fusion.few_rows import few_rows
from planner.fusion.lookups import bound_of
from planner.fusion.lowered import LoweredRegion
from planner.fusion.precision import without_casts
from planner.fusion.reference import LONGEST_TABLE, Sizes, reference, sizes_with, takes_rows
from planner.fusion.spent import spent_input
from planner.fusion.subgraph import run_in_float64
from planner.report.model import NumericsRow

Run = Callable[..., Any]

_INTERPRETED_ROWS = 2
_INTERPRETED_SHORT = 4
"""The interpreter takes a millisecond and more for a program, and compiles nothing."""
_FAST_ELEMENTS = 1 << 16
"""Elements of the region in a check that is made for every case."""
_MOST_OF_MANY = 1 << 22
"""Elements of the region in a draw that is repeated 16 times; larger ones are repeated smaller."""
_NEARBY = 16
"""Evaluations around a draw that tell a row where float32 is lucky from a well-conditioned one."""
_NEARBY_STEP = 1.3e-4
"""A thousand steps of float32 and no power of two."""


@dataclass(frozen=True, slots=True)
class _Truth:
    """The region's operators: `eager` as they are, `exact` to be run in float64 (or float32)
    without the casts that the kernel leaves out.
    """

    eager: fx.GraphModule
    exact: fx.GraphModule


@dataclass(slots=True)
class _Truths:
    """The region's operators at the sizes asked for so far."""

    lowered: LoweredRegion
    _made: dict[tuple[tuple[int, int], ...], _Truth] = field(default_factory=dict)

    def at(self, sizes: Sizes) -> _Truth:
        key = tuple(sizes.items())
        if key not in self._made:
            self._made[key] = _truth(self.lowered, sizes)
        return self._made[key]


@dataclass(frozen=True, slots=True)
class _Kind:
    """What is drawn for one check, and at which sizes."""

    case: InputCase
    sizes: Sizes


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Inputs of one check with their truth."""

    truth: _Truth
    tensors: tuple[Tensor, ...]
    exact: Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class _Target:
    """One way the kernel runs: what it is called, how to call it, on which device, and whether
    the captured size is affordable. Where it is not, rows of `elements` are enough. With
    `leading_alone` what runs is compiled for the captured sizes of all dimensions but the leading.
    """

    label: str
    run: Run
    device: str
    every_size: bool
    elements: int = 0
    leading_alone: bool = False


def verify_region(
    lowered: LoweredRegion, operator: FusedOperator, device: str, seed: int
) -> tuple[NumericsRow, ...]:
    """A row for each measure and way of running, with the worst case of all drawn; up to the first
    case that fails, which is enough to turn the kernel down.

    Draws: scales 1e-6 to 1e4, large means, zeros, constant rows, NaN and infinities, strided,
    transposed, expanded and offset inputs at a few rows; normal values at the captured size, one
    row and no rows.
    """
    worst: dict[tuple[str, str], tuple[NumericsResult, str]] = {}
    for target, label, results in _checks(lowered, operator, device, seed):
        for result in results:
            key = (target, result.measure)
            if key not in worst or _badness(result) > _badness(worst[key][0]):
                worst[key] = (result, label)
        if not all(result.passed for result in results):
            break
    dtype = lowered.region.outputs[0].dtype
    return tuple(
        numerics_row(operator.name, dtype, result, f"{target}, {label}")
        for (target, _), (result, label) in worst.items()
    )


def numerics_row(subject: str, dtype: str, result: NumericsResult, case: str) -> NumericsRow:
    """One measure as a row of the report."""
    return NumericsRow(
        subject=subject,
        dtype=dtype,
        error=result.error,
        eager_error=result.eager_error,
        limit=result.limit,
        passed=result.passed,
        measure=result.measure,
        case=case,
    )


def _checks(
    lowered: LoweredRegion, operator: FusedOperator, device: str, seed: int
) -> Iterator[tuple[str, str, list[NumericsResult]]]:
    """Each way of running with each case, and what was measured."""
    truths = _Truths(lowered)
    for target in _targets(lowered, operator, device):
        kinds = _kinds(lowered, target)
        if target.device.startswith("cuda"):
            operator.compile_for(_arguments(lowered, kinds, target.device))
        for kind in kinds:
            yield target.label, kind.case.label, _judge(truths, target, kind, seed)


def _truth(lowered: LoweredRegion, sizes: Sizes) -> _Truth:
    module = reference(lowered, sizes)
    names = {node.name for node in lowered.unrounded}
    return _Truth(module, without_casts(module, names) if names else module)


def _targets(lowered: LoweredRegion, operator: FusedOperator, device: str) -> list[_Target]:
    if device.startswith("cuda"):
        return [_Target("Triton on CUDA", _placed(lowered, operator.overload), device, True)]
    region = operator.cpu_region()
    label = "CPU region" if region.compiled else "CPU region, eager"
    run = _placed(lowered, operator.overload)
    targets = [_Target(label, run, "cpu", True, leading_alone=True)]
    spent = spent_input(lowered)
    if spent is not None:
        in_place = _in_place(operator, spent)
        targets.append(_Target(f"{label}, in place", in_place, "cpu", True, leading_alone=True))
    interpreter = _placed(lowered, interpreted(operator.path, operator.source.name))
    elements = _elements_of_two_programs(operator.source)
    return [*targets, _Target("Triton, interpreted", interpreter, "cpu", False, elements)]


def _placed(lowered: LoweredRegion, kernel: Run) -> Run:
    """The kernel as a function of what the region's nodes read and return."""

    def run(*tensors: Tensor) -> Any:
        results = lowered.returned(kernel(*lowered.arguments(tensors)))
        return results[0] if len(results) == 1 else results

    return run


def _elements_of_two_programs(source: KernelSource) -> int:
    """What a third program begins after, so that a wrong start of the second or a wrong end of the
    last shows.
    """
    return 2 * source.config.block_size * (source.config.rows or 1)


def _in_place(operator: FusedOperator, index: int) -> Run:
    """The overwriting operator on a copy of that input, so that the draw stays."""

    def run(*tensors: Tensor) -> Any:
        copies = list(tensors)
        copies[index] = tensors[index].clone()
        return operator.reusing(index)(*copies)

    return run


def _kinds(lowered: LoweredRegion, target: _Target) -> list[_Kind]:
    """Every case at few rows, and normal values at the captured size, one row and no rows."""
    often: Sizes = few_rows(lowered, _FAST_ELEMENTS, leading_alone=target.leading_alone)
    if not target.every_size:
        often = _as_few_programs(lowered, often, target.elements)
    kinds = [_Kind(case, often) for case in told_apart(_specs(lowered, often))]
    if takes_rows(lowered):
        kinds += [_Kind(InputCase("one row"), {**often, 0: 1})]
        kinds += [_Kind(InputCase("no rows"), {**often, 0: 0})]
    return [*kinds, _Kind(InputCase("captured size"), {})] if target.every_size else kinds


def _as_few_programs(lowered: LoweredRegion, often: Sizes, elements: int) -> Sizes:
    """Fewer rows still, which three programs share, the first two of them with `elements`."""
    region = lowered.region
    fewer: Sizes = few_rows(lowered, 2 * elements, _INTERPRETED_SHORT)
    if _numel(region, fewer) <= min(elements, _numel(region, often)):
        fewer = often
    if not takes_rows(lowered):
        return fewer
    inner = max(1, _numel(region, {**fewer, 0: 1}))
    rows = min(fewer.get(0, region.shape[0]), max(_INTERPRETED_ROWS, 1 + elements // inner))
    return {**fewer, 0: rows}


def _numel(region: Region, sizes: Sizes) -> int:
    return prod(sizes.get(dim, size) for dim, size in enumerate(region.shape))


def _arguments(
    lowered: LoweredRegion, kinds: Iterable[_Kind], device: str
) -> Iterator[tuple[Any, ...]]:
    """What the kernel is given for each of them, without values."""
    for kind in kinds:
        specs = _specs(lowered, kind.sizes)
        yield lowered.arguments(lay_out_case(specs, kind.case, device=device))


def _specs(lowered: LoweredRegion, sizes: Sizes) -> list[InputSpec]:
    """What each input must be where the region's dimensions have these sizes."""
    specs = []
    for node in lowered.inputs:
        own, dtype = sizes_with(lowered, node, sizes), node.meta["val"].dtype
        fixed = node.op == "placeholder" and len(own) <= max(lowered.region.row_rank, 1)
        bound = bound_of(node)
        bound = None if bound is None else min(bound, LONGEST_TABLE)
        specs.append(InputSpec(own, dtype, bound, fixed or node in lowered.tables))
    return specs


def _judge(truths: _Truths, target: _Target, kind: _Kind, seed: int) -> list[NumericsResult]:
    results: list[NumericsResult] = []
    drawn = _drawn(truths, target, kind, seed)
    outs, eager = _ran(target, drawn)
    for index, (out, ref, base) in enumerate(zip(outs, drawn.exact, eager, strict=True)):
        found = check(out, ref, eager=base)
        if not all(result.passed for result in found):
            first = (drawn, outs, eager)
            found = _ill_conditioned(truths, target, kind, seed, first, index) or found
        results += found
    return results


def _drawn(truths: _Truths, target: _Target, kind: _Kind, seed: int) -> _Drawn:
    specs = _specs(truths.lowered, kind.sizes)
    tensors = draw_case(specs, kind.case, seed, device=target.device)
    truth = truths.at(kind.sizes)
    return _Drawn(truth, tensors, run_in_float64(truth.exact, tensors))


def _ran(target: _Target, drawn: _Drawn) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """What the kernel and what eager makes of it."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy's, on the infinities we feed it
        out = target.run(*drawn.tensors)
        eager = drawn.truth.eager(*drawn.tensors)
    return (out,) if isinstance(out, Tensor) else out, eager


def _ill_conditioned(
    truths: _Truths,
    target: _Target,
    kind: _Kind,
    seed: int,
    first: tuple[_Drawn, Sequence[Tensor], Sequence[Tensor]],
    index: int,
) -> tuple[NumericsResult, ...] | None:
    """The contract's clause for rows where float32 itself misses the line; None when there are
    none.

    The draw that failed is one of those judged, so that nothing else can hide behind the clause;
    the others have few rows where it has very many.
    """
    lowered = truths.lowered
    dtype = getattr(torch, lowered.region.outputs[index].dtype)
    if not dtype.is_floating_point:
        return None
    if _numel(lowered.region, kind.sizes) > _MOST_OF_MANY:
        few = few_rows(lowered, _FAST_ELEMENTS, leading_alone=target.leading_alone)
        kind = _Kind(kind.case, few)
    failed, *ran = first
    draws = [failed, *(_drawn(truths, target, kind, seed + n) for n in range(1, MIN_DRAWS))]
    exact = [drawn.exact[index] for drawn in draws]
    float32 = [_rounded_float32(drawn, index, dtype) for drawn in draws]
    # Asked before the kernel runs 15 times more, which the interpreter takes seconds for.
    if all(r.passed for pair in zip(float32, exact, strict=True) for r in check(*pair)):
        return None
    pairs = [ran, *(_ran(target, drawn) for drawn in draws[1:])]
    outs, eager = ([pair[part][index] for pair in pairs] for part in range(2))
    conditioning, *judged = check_ill_conditioned(
        outs,
        exact,
        eager,
        float32=float32,
        nearby=lambda draw: _nearby(draws[draw], index, dtype),
    )
    return tuple(judged) if conditioning.passed and judged else None


def _rounded_float32(drawn: _Drawn, index: int, dtype: torch.dtype) -> Tensor:
    """The region operator by operator in float32, rounded once."""
    widened = [t.float() if t.is_floating_point() else t for t in drawn.tensors]
    with torch.no_grad():
        result: Tensor = drawn.truth.exact(*widened)[index]
    return result.to(dtype)


def _nearby(drawn: _Drawn, index: int, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    """Float32's results where all inputs are a little larger, which rounds anew all that follows
    and cancels what cancelled, and what is right there.
    """
    for number in range(1, _NEARBY + 1):
        moved = tuple(
            t.float() * (1 + number * _NEARBY_STEP) if t.is_floating_point() else t
            for t in drawn.tensors
        )
        near = replace(drawn, tensors=moved, exact=run_in_float64(drawn.truth.exact, moved))
        yield _rounded_float32(near, index, dtype), near.exact[index]


def _badness(result: NumericsResult) -> float:
    if not result.passed:
        return float("inf")
    return (result.error or 0.0) / result.limit if result.limit else (result.error or 0.0)
