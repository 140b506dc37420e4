"""Holds every generated kernel, and the fused whole, against float64 under the numerics contract.

What is verified is what will run: on CPU the compiled region and the emitted Triton text in the
interpreter (its float32 logic), on CUDA the kernel itself. The reference is the original
operators in float64.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from fusion_kernels.inputs import CASES, InputCase, InputSpec, draw_case, input_cases
from fusion_kernels.ir import Region
from fusion_kernels.library import FusedOperator
from fusion_kernels.load import interpreted
from fusion_kernels.tolerances import (
    MIN_DRAWS,
    NumericsResult,
    check,
    check_ill_conditioned,
    check_model,
)
from planner.fusion.lower import LoweredRegion
from planner.fusion.subgraph import extract, run_in_float64
from planner.report.model import NumericsRow

Run = Callable[..., Any]

_INTERPRETED_ROWS = 3
_FAST_ELEMENTS = 1 << 16


@dataclass(frozen=True, slots=True)
class _Target:
    """One way the kernel runs: what it is called, how to call it, on which device."""

    label: str
    run: Run
    device: str
    every_size: bool


def verify_region(
    lowered: LoweredRegion, operator: FusedOperator, device: str, seed: int
) -> tuple[NumericsRow, ...]:
    """A row for each measure and way of running, with the worst case of all drawn.

    Draws: scales 1e-6 to 1e4, large means, zeros, constant rows, NaN and infinities, strided,
    transposed, expanded and offset inputs at a few rows; normal values at the captured size, one
    row and no rows.
    """
    module = extract(lowered.nodes, lowered.inputs).module
    worst: dict[tuple[str, str], tuple[NumericsResult, str]] = {}
    for target in _targets(operator, device):
        for label, tensors in _draws(lowered, target, seed):
            for result in _judge(module, target, tensors, label, lowered, seed):
                key = (target.label, result.measure)
                if key not in worst or _badness(result) > _badness(worst[key][0]):
                    worst[key] = (result, label)
    dtype = lowered.region.outputs[0].dtype
    return tuple(
        _row(operator.name, dtype, result, f"{target}, {label}")
        for (target, _), (result, label) in worst.items()
    )


def verify_model(
    fused: Run,
    eager: Run,
    reference: Run,
    draws: Sequence[Any],
    subject: str,
) -> tuple[NumericsRow, ...]:
    """The whole model on 16 draws or more: one row an output and measure.

    The three callables take one draw and return a list of tensors in the same order.
    """
    if len(draws) < MIN_DRAWS:
        raise ValueError(f"the contract asks for {MIN_DRAWS} draws, not {len(draws)}")
    with torch.no_grad():
        triples = [(fused(draw), eager(draw), reference(draw)) for draw in draws]
    rows: list[NumericsRow] = []
    for index in range(len(triples[0][0])):
        ours, theirs, exact = zip(
            *(tuple(t[index] for t in triple) for triple in triples), strict=True
        )
        dtype = str(ours[0].dtype).removeprefix("torch.")
        where = f"output {index}, {len(draws)} draws"
        rows += [_row(subject, dtype, result, where) for result in check_model(ours, theirs, exact)]
    return tuple(rows)


def _targets(operator: FusedOperator, device: str) -> list[_Target]:
    if device.startswith("cuda"):
        return [_Target("Triton on CUDA", operator.overload, device, True)]
    region = operator.cpu_region()
    label = "CPU region" if region.compiled else "CPU region, eager"
    targets = [_Target(label, operator.overload, "cpu", True)]
    spent = overwritable(operator.source.region)
    if spent is not None:
        targets.append(_Target(f"{label}, in place", _in_place(operator, spent), "cpu", True))
    interpreter = interpreted(operator.path, operator.source.name)
    return [*targets, _Target("Triton, interpreted", interpreter, "cpu", False)]


def overwritable(region: Region) -> int | None:
    """The first input that the region's only output could overwrite: same shape, dtype and
    layout.
    """
    if len(region.outputs) != 1 or region.row_rank:
        return None
    (output,) = region.outputs
    for index, item in enumerate(region.inputs):
        form = (item.shape, item.dtype, item.stride)
        if form == (region.shape, output.dtype, output.stride) and item.rank == len(region.shape):
            return index
    return None


def _in_place(operator: FusedOperator, index: int) -> Run:
    """The overwriting operator on a copy of that input, so that the draw stays."""

    def run(*tensors: Tensor) -> Any:
        copies = list(tensors)
        copies[index] = tensors[index].clone()
        return operator.reusing(index)(*copies)

    return run


def _draws(
    lowered: LoweredRegion, target: _Target, seed: int
) -> Iterator[tuple[str, tuple[Tensor, ...]]]:
    region = lowered.region
    small = _leading(region)
    specs = _specs(lowered, small if target.every_size else min(small, _INTERPRETED_ROWS))
    yield from input_cases(specs, seed, device=target.device)
    normal = CASES[0]
    sizes: dict[str, int] = {"one row": 1, "no rows": 0}
    if target.every_size:
        sizes["captured size"] = region.shape[0] if region.shape else 1
    for label, rows in sizes.items():
        if region.shape and len(region.shape) > region.row_rank and region.shape[0] > 1:
            specs = _specs(lowered, rows)
            yield label, draw_case(specs, InputCase(label), seed, device=target.device)
    if not region.shape or region.shape[0] == 1:
        yield "captured size", draw_case(_specs(lowered, None), normal, seed, device=target.device)


def _leading(region: Region) -> int:
    """Rows of the leading dimension that keep a draw small."""
    if not region.shape or not region.numel:
        return 1
    inner = region.numel // region.shape[0]
    return max(1, min(region.shape[0], _FAST_ELEMENTS // max(inner, 1) or 1))


def _specs(lowered: LoweredRegion, leading: int | None) -> list[InputSpec]:
    """What each input must be, with the region's leading dimension set to `leading`."""
    region = lowered.region
    specs = []
    for item, node in zip(region.inputs, lowered.inputs, strict=True):
        shape = list(item.shape)
        resized = len(region.shape) > region.row_rank and region.shape and region.shape[0] > 1
        if leading is not None and resized and shape[0] == region.shape[0]:
            shape[0] = leading
        own = tuple(shape[len(shape) - item.rank :])
        fixed = node.op == "placeholder" and item.rank <= max(region.row_rank, 1)
        specs.append(InputSpec(own, getattr(torch, item.dtype), fixed=fixed))
    return specs


def _judge(
    module: fx.GraphModule,
    target: _Target,
    tensors: tuple[Tensor, ...],
    label: str,
    lowered: LoweredRegion,
    seed: int,
) -> list[NumericsResult]:
    results: list[NumericsResult] = []
    outs, exact, eager = _three(module, target, tensors)
    for index, (out, ref, base) in enumerate(zip(outs, exact, eager, strict=True)):
        found = check(out, ref, eager=base)
        if not all(result.passed for result in found) and label in _BY_LABEL:
            found = _ill_conditioned(module, target, lowered, label, seed, index) or found
        results += found
    return results


def _three(
    module: fx.GraphModule, target: _Target, tensors: tuple[Tensor, ...]
) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy's, on the infinities we feed it
        out = target.run(*tensors)
        eager = module(*tensors)
    exact = run_in_float64(module, tensors)
    return (out,) if isinstance(out, Tensor) else out, exact, eager


_BY_LABEL = {case.label: case for case in CASES}


def _ill_conditioned(
    module: fx.GraphModule,
    target: _Target,
    lowered: LoweredRegion,
    label: str,
    seed: int,
    index: int,
) -> tuple[NumericsResult, ...] | None:
    """The contract's clause where float32 itself misses the line; None when it may not be used."""
    specs = _specs(lowered, min(_leading(lowered.region), _INTERPRETED_ROWS))
    draws = [
        draw_case(specs, _BY_LABEL[label], seed + 1 + number, device=target.device)
        for number in range(MIN_DRAWS)
    ]
    triples = [_three(module, target, tensors) for tensors in draws]
    outs, exact, eager = ([t[part][index] for t in triples] for part in range(3))
    float32 = None
    if outs[0].dtype is not torch.float32:
        float32 = [_rounded_float32(module, tensors, index, outs[0].dtype) for tensors in draws]
    results = check_ill_conditioned(outs, exact, eager, float32=float32)
    conditioning, *judged = results
    return tuple(judged) if conditioning.passed and judged else None


def _rounded_float32(
    module: fx.GraphModule, tensors: Sequence[Tensor], index: int, dtype: torch.dtype
) -> Tensor:
    widened = [t.float() if t.is_floating_point() else t for t in tensors]
    with torch.no_grad():
        result: Tensor = module(*widened)[index]
    return result.to(dtype)


def _badness(result: NumericsResult) -> float:
    if not result.passed:
        return float("inf")
    return (result.error or 0.0) / result.limit if result.limit else (result.error or 0.0)


def _row(subject: str, dtype: str, result: NumericsResult, where: str) -> NumericsRow:
    return NumericsRow(
        subject=subject,
        dtype=dtype,
        error=result.error,
        eager_error=result.eager_error,
        limit=result.limit,
        passed=result.passed,
        measure=result.measure,
        case=where,
    )
