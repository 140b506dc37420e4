"""Holds every generated kernel against float64 under the numerics contract.

What is verified is what will run: on CPU the compiled region and the emitted Triton text in the
interpreter (its float32 logic), on CUDA the kernel itself. The reference is the original
operators in float64, less the casts that the kernel leaves out (`--precision high`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from fusion_kernels.emit.source import KernelSource
from fusion_kernels.inputs import CASES, InputCase, InputSpec, draw_case, input_cases
from fusion_kernels.ir import Region
from fusion_kernels.library import FusedOperator
from fusion_kernels.load import interpreted
from fusion_kernels.tolerances import (
    MIN_DRAWS,
    NumericsResult,
    check,
    check_ill_conditioned,
)
from planner.fusion.lookups import bound_of
from planner.fusion.lowered import LoweredRegion
from planner.fusion.precision import without_casts
from planner.fusion.reference import LONGEST_TABLE, reference, sizes_with, takes_rows
from planner.fusion.spent import spent_input
from planner.fusion.subgraph import run_in_float64
from planner.report.model import NumericsRow

Run = Callable[..., Any]

_INTERPRETED_ROWS = 2
_FAST_ELEMENTS = 1 << 16


@dataclass(frozen=True, slots=True)
class _Truth:
    """The region's operators: `eager` as they are, `exact` to be run in float64 (or float32)
    without the casts that the kernel leaves out.
    """

    eager: fx.GraphModule
    exact: fx.GraphModule


@dataclass(frozen=True, slots=True)
class _Draw:
    """Inputs of one check, and what is needed to draw more of the kind."""

    label: str
    case: InputCase
    leading: int | None
    tensors: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class _Target:
    """One way the kernel runs: what it is called, how to call it, on which device, and whether
    the captured size is affordable. `rows` are drawn where it is not.
    """

    label: str
    run: Run
    device: str
    every_size: bool
    rows: int = 0


def verify_region(
    lowered: LoweredRegion, operator: FusedOperator, device: str, seed: int
) -> tuple[NumericsRow, ...]:
    """A row for each measure and way of running, with the worst case of all drawn.

    Draws: scales 1e-6 to 1e4, large means, zeros, constant rows, NaN and infinities, strided,
    transposed, expanded and offset inputs at a few rows; normal values at the captured size, one
    row and no rows.
    """
    truths: dict[int | None, _Truth] = {}
    worst: dict[tuple[str, str], tuple[NumericsResult, str]] = {}
    for target in _targets(lowered, operator, device):
        for draw in _draws(lowered, target, seed):
            if draw.leading not in truths:
                truths[draw.leading] = _truth(lowered, draw.leading)
            for result in _judge(truths[draw.leading], target, draw, lowered, seed):
                key = (target.label, result.measure)
                if key not in worst or _badness(result) > _badness(worst[key][0]):
                    worst[key] = (result, draw.label)
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


def _truth(lowered: LoweredRegion, leading: int | None) -> _Truth:
    module = reference(lowered, leading)
    names = {node.name for node in lowered.unrounded}
    return _Truth(module, without_casts(module, names) if names else module)


def _targets(lowered: LoweredRegion, operator: FusedOperator, device: str) -> list[_Target]:
    if device.startswith("cuda"):
        return [_Target("Triton on CUDA", _placed(lowered, operator.overload), device, True)]
    region = operator.cpu_region()
    label = "CPU region" if region.compiled else "CPU region, eager"
    targets = [_Target(label, _placed(lowered, operator.overload), "cpu", True)]
    spent = spent_input(lowered)
    if spent is not None:
        targets.append(_Target(f"{label}, in place", _in_place(operator, spent), "cpu", True))
    interpreter = _placed(lowered, interpreted(operator.path, operator.source.name))
    rows = _rows_of_three_programs(operator.source)
    return [*targets, _Target("Triton, interpreted", interpreter, "cpu", False, rows)]


def _placed(lowered: LoweredRegion, kernel: Run) -> Run:
    """The kernel as a function of what the region's nodes read and return."""

    def run(*tensors: Tensor) -> Any:
        results = lowered.returned(kernel(*lowered.arguments(tensors)))
        return results[0] if len(results) == 1 else results

    return run


def _rows_of_three_programs(source: KernelSource) -> int:
    """Leading rows that three programs of the kernel share, so that a wrong start of the second
    or a wrong end of the last shows.
    """
    region, config = source.region, source.config
    inner = max(1, region.numel // region.shape[0]) if region.numel else 1
    return max(_INTERPRETED_ROWS, 1 + 2 * config.block_size * (config.rows or 1) // inner)


def _in_place(operator: FusedOperator, index: int) -> Run:
    """The overwriting operator on a copy of that input, so that the draw stays."""

    def run(*tensors: Tensor) -> Any:
        copies = list(tensors)
        copies[index] = tensors[index].clone()
        return operator.reusing(index)(*copies)

    return run


def _draws(lowered: LoweredRegion, target: _Target, seed: int) -> Iterator[_Draw]:
    region = lowered.region
    small = _leading(region)
    rows = small if target.every_size else min(small, target.rows)
    specs = _specs(lowered, rows)
    by_label = {case.label: case for case in CASES}
    for label, tensors in input_cases(specs, seed, device=target.device):
        yield _Draw(label, by_label[label], rows, tensors)
    sizes: dict[str, int | None] = {}
    if takes_rows(lowered):
        sizes = {"one row": 1, "no rows": 0}
        if target.every_size:
            sizes["captured size"] = region.shape[0]
    elif target.every_size:
        sizes["captured size"] = None
    for label, size in sizes.items():
        case = InputCase(label)
        tensors = draw_case(_specs(lowered, size), case, seed, device=target.device)
        yield _Draw(label, case, size, tensors)


def _leading(region: Region) -> int:
    """Rows of the leading dimension that keep a draw small."""
    if not region.shape or not region.numel:
        return 1
    inner = region.numel // region.shape[0]
    return max(1, min(region.shape[0], _FAST_ELEMENTS // max(inner, 1) or 1))


def _specs(lowered: LoweredRegion, leading: int | None) -> list[InputSpec]:
    """What each input must be, with the region's leading dimension set to `leading`."""
    specs = []
    for node in lowered.inputs:
        own, dtype = sizes_with(lowered, node, leading), node.meta["val"].dtype
        fixed = node.op == "placeholder" and len(own) <= max(lowered.region.row_rank, 1)
        bound = bound_of(node)
        bound = None if bound is None else min(bound, LONGEST_TABLE)
        specs.append(InputSpec(own, dtype, bound, fixed or node in lowered.tables))
    return specs


def _judge(
    truth: _Truth, target: _Target, draw: _Draw, lowered: LoweredRegion, seed: int
) -> list[NumericsResult]:
    results: list[NumericsResult] = []
    outs, exact, eager = _three(truth, target, draw.tensors)
    for index, (out, ref, base) in enumerate(zip(outs, exact, eager, strict=True)):
        found = check(out, ref, eager=base)
        if not all(result.passed for result in found):
            found = _ill_conditioned(truth, target, lowered, draw, seed, index) or found
        results += found
    return results


def _three(
    truth: _Truth, target: _Target, tensors: tuple[Tensor, ...]
) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy's, on the infinities we feed it
        out = target.run(*tensors)
        eager = truth.eager(*tensors)
    exact = run_in_float64(truth.exact, tensors)
    return (out,) if isinstance(out, Tensor) else out, exact, eager


def _ill_conditioned(
    truth: _Truth,
    target: _Target,
    lowered: LoweredRegion,
    draw: _Draw,
    seed: int,
    index: int,
) -> tuple[NumericsResult, ...] | None:
    """The contract's clause where float32 itself misses the line; None when it may not be used.

    The draw that failed is one of those judged, so that nothing else can hide behind the clause.
    """
    specs = _specs(lowered, draw.leading)
    draws = [draw.tensors]
    draws += [
        draw_case(specs, draw.case, seed + number, device=target.device)
        for number in range(1, MIN_DRAWS)
    ]
    dtype = getattr(torch, lowered.region.outputs[index].dtype)
    if not dtype.is_floating_point:
        return None
    float32 = [_rounded_float32(truth.exact, tensors, index, dtype) for tensors in draws]
    # Asked before the kernel runs 16 times, which the interpreter takes seconds for.
    references = [run_in_float64(truth.exact, tensors)[index] for tensors in draws]
    if all(r.passed for pair in zip(float32, references, strict=True) for r in check(*pair)):
        return None
    triples = [_three(truth, target, tensors) for tensors in draws]
    outs, exact, eager = ([t[part][index] for t in triples] for part in range(3))
    conditioning, *judged = check_ill_conditioned(outs, exact, eager, float32=float32)
    return tuple(judged) if conditioning.passed and judged else None


def _rounded_float32(
    module: fx.GraphModule, tensors: Sequence[Tensor], index: int, dtype: torch.dtype
) -> Tensor:
    """The region operator by operator in float32, rounded once."""
    widened = [t.float() if t.is_floating_point() else t for t in tensors]
    with torch.no_grad():
        result: Tensor = module(*widened)[index]
    return result.to(dtype)


def _badness(result: NumericsResult) -> float:
    if not result.passed:
        return float("inf")
    return (result.error or 0.0) / result.limit if result.limit else (result.error or 0.0)
