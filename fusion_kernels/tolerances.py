"""The numerics contract as one table, and the checks that hold a result against it.

Words: `ref` is the float64 (or exact integer) reference; `RN(ref)` is it rounded once to the
output's dtype; a *step* is the distance from `RN(ref)` to the next value of larger magnitude; a
*row* is the last dimension, after trailing dimensions of size 1 are dropped, so that statistics
kept as `[rows, 1]` are judged like those returned as `[rows]`. A complex tensor is judged by its
real and imaginary parts, which lie side by side in its rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fusion_kernels.measures import (
    Measured,
    Unit,
    error_of,
    measure,
    misplaced,
    norm,
    ratio,
    unravel,
    worst,
)
from fusion_kernels.rounding import round_once


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What one dtype must keep. A limit of None means that the rule does not apply.

    `element_unit` is what an element's |difference| is divided by before it is held against
    `element_limit`: max(1, |ref|); the row's largest |ref|; one step plus 1e-5 of the row's
    largest |ref|; or one step. `row_limit` bounds ||out - ref|| / ||ref|| of every row,
    `norm_limit` ||out - RN(ref)|| / ||RN(ref)|| of a tensor of `NORM_ELEMENTS` or more. Where
    steps count, the difference is to `RN(ref)`, else to `ref`.
    """

    element_unit: Unit
    element_limit: float
    row_limit: float | None = None
    norm_limit: float | None = None


NORM_ELEMENTS = 1024
ZERO_LIMIT = 1e-6
ILL_CONDITIONED_LARGEST = 2.0
ILL_CONDITIONED_RMS = 1.1
MODEL_ERROR = 1.1
MODEL_FLOAT32_NORM = 1e-5
MODEL_FLOAT32_ERROR = 2.0
MODEL_DIFFERENCE = 2.0
MIN_DRAWS = 16

# Integers and booleans are exact and need no row here; a dtype that is neither never passes.
TOLERANCES: dict[torch.dtype, Tolerance] = {
    torch.float64: Tolerance("row_largest", 1e-12, row_limit=1e-12),
    torch.float32: Tolerance("value_or_one", 1e-5, row_limit=1e-5),
    torch.float16: Tolerance("step_and_row_share", 1.0, norm_limit=1e-3),
    torch.bfloat16: Tolerance("step_and_row_share", 1.0, norm_limit=1e-3),
    torch.float8_e4m3fn: Tolerance("step", 1.0),
    torch.float8_e5m2: Tolerance("step", 1.0),
}


@dataclass(frozen=True, slots=True)
class NumericsResult:
    """One measure of one tensor. `error` is None where it cannot be computed; `where` indexes the
    worst element ("element", "zero", "exact", "nonfinite"), row ("row") or draw.
    """

    measure: str
    error: float | None
    eager_error: float | None
    limit: float
    passed: bool
    where: tuple[int, ...] | None = None


def check(
    out: Tensor,
    reference: Tensor,
    *,
    eager: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[NumericsResult, ...]:
    """Hold one kernel's output against the contract; it passes when every result passed.

    `reference` has `out`'s shape: float64 for a floating `out`, complex128 for a complex one,
    exact values of any integer dtype or bool otherwise. `dtype` is what `out` must have (default:
    `eager`'s, else `out`'s own). `eager`, same shape, loosens nothing: its error is reported
    beside. Measures: "shape", "dtype", "exact", "nonfinite" (count of NaN and infinities not
    standing where `RN(ref)` has them; eager's own are counted in `eager_error`), "zero" (|out|
    where `ref` is exactly 0), "element", "row", "norm". Raises ValueError when the reference of a
    floating output is not float64.
    """
    with torch.no_grad():
        expected = dtype or (out.dtype if eager is None else eager.dtype)
        mismatch = _mismatch(out, reference, expected)
        if mismatch is not None:
            return (mismatch,)
        if out.is_complex():
            beside = None if eager is None else _parts(eager)
            return check(_parts(out), _parts(reference), eager=beside)
        reference = reference.detach().to(out.device)
        if eager is not None and (eager.shape != out.shape or eager.dtype != out.dtype):
            raise ValueError("eager's output must have the shape and dtype of the one it is beside")
        if out.numel() == 0:
            return (NumericsResult("shape", 0.0, None, 0.0, True),)
        if not out.dtype.is_floating_point:
            return (_exact(out, reference, eager),)
        if reference.dtype is not torch.float64:
            raise ValueError(f"the reference must be float64, not {reference.dtype}")
        return _floating(out, reference, eager)


def check_ill_conditioned(
    outs: Sequence[Tensor],
    references: Sequence[Tensor],
    eagers: Sequence[Tensor],
    *,
    float32: Sequence[Tensor] | None = None,
) -> tuple[NumericsResult, ...]:
    """The clause for inputs where float32 arithmetic itself cannot meet the line, over 16 draws
    or more of one shape.

    `float32` holds the same program run operator by operator in float32 and rounded once to the
    output's dtype; for float32 outputs it is `eagers` and may be left out. The first result,
    "conditioning", tells whether the clause may be used: its `eager_error` is the largest of
    error / limit that `float32` reaches under `check`, and it passes only above 1, so that
    well-conditioned inputs are never judged by the looser lines. "largest" is the largest
    |out - ref| of all draws (limit: twice eager's), "rms" the root mean square of all elements
    (limit: 1.1 times eager's). Raises ValueError for fewer than 16 draws, and when `float32` is
    missing for another dtype.
    """
    _require_draws(outs, references, eagers)
    if float32 is None:
        if outs[0].dtype is not torch.float32:
            raise ValueError(f"{outs[0].dtype} outputs need the float32 evaluation as `float32`")
        float32 = eagers
    if any(beside.dtype is not outs[0].dtype for beside in float32):
        raise ValueError("the float32 evaluation must be rounded to the outputs' dtype")
    with torch.no_grad():
        needed = max(map(_worst_ratio, float32, references))
        conditioning = NumericsResult("conditioning", None, needed, 1.0, needed > 1.0)
        broken = _first_broken(outs, references, eagers)
        if broken is not None:
            return (conditioning, broken)
        pairs = list(zip(outs, eagers, references, strict=True))
        ours = [error_of(out, ref) for out, _, ref in pairs]
        theirs = [error_of(eager, ref) for _, eager, ref in pairs]
        by_draw = [worst(error)[0] for error in ours]
        eager_largest = max(worst(error)[0] for error in theirs)
        root_count = math.sqrt(sum(error.numel() for error in ours))
        rms = math.hypot(*map(norm, ours)) / root_count
        eager_rms = math.hypot(*map(norm, theirs)) / root_count
    largest, draw = max(by_draw), by_draw.index(max(by_draw))
    largest_limit = ILL_CONDITIONED_LARGEST * eager_largest
    rms_limit = ILL_CONDITIONED_RMS * eager_rms
    return (
        conditioning,
        _bounded("largest", Measured(largest, (draw,)), eager_largest, largest_limit),
        _bounded("rms", Measured(rms, None), eager_rms, rms_limit),
    )


@dataclass(frozen=True, slots=True)
class ModelDraw:
    """One draw of one output of a model, measured: norms of the reference, of both errors and of
    the distance between the two. `results` holds the checks of an output that is judged draw by
    draw, or the one failure of a draw that is `broken` (shape, dtype, places of NaN).
    """

    dtype: torch.dtype
    size: float = 0.0
    ours: float = 0.0
    theirs: float = 0.0
    apart: float = 0.0
    results: tuple[NumericsResult, ...] = ()
    broken: bool = False


def measure_draw(fused: Tensor, eager: Tensor, reference: Tensor) -> ModelDraw:
    """What `judge_draws` needs of one draw, so that its tensors need not be kept."""
    with torch.no_grad():
        broken = _broken(fused, reference, eager)
        if broken is not None:
            return ModelDraw(fused.dtype, results=(broken,), broken=True)
        if fused.is_complex():
            fused, reference, eager = map(_parts, (fused, reference, eager))
        dtype = fused.dtype
        if dtype is torch.float64 or not dtype.is_floating_point or fused.numel() == 0:
            return ModelDraw(dtype, results=check(fused, reference, eager=eager))
        return ModelDraw(
            dtype,
            norm(error_of(torch.zeros_like(fused), reference)),
            norm(error_of(fused, reference)),
            norm(error_of(eager, reference)),
            norm(error_of(fused, reference, other=eager)),
        )


def judge_draws(draws: Sequence[ModelDraw]) -> tuple[NumericsResult, ...]:
    """One output of the whole model over 16 draws or more.

    "norm" is the error against float64, ||out - ref|| / ||ref|| over all draws together: at most
    1.1 times eager's. In float32 it is that of the worst draw: at most 1e-5, or at most twice
    that of eager's worst draw. "difference" is ||fused - eager|| / ||ref|| over all draws
    together: at most twice eager's own error, which counts as half a step of the dtype where it
    is less: two results that are both as near as can be lie a step apart. NaN and infinities must
    stand as in `RN(ref)`. Float64, integer and empty outputs are held to `check` draw by draw.
    Raises ValueError for fewer than 16 draws.
    """
    if len(draws) < MIN_DRAWS:
        raise ValueError(f"{MIN_DRAWS} draws or more are needed, not {len(draws)}")
    for number, draw in enumerate(draws):
        if draw.broken:
            return (replace(draw.results[0], where=(number,)),)
    if draws[0].results:
        return tuple(result for draw in draws for result in draw.results)
    dtype = draws[0].dtype
    size = math.hypot(*(draw.size for draw in draws))
    eager_error = ratio(math.hypot(*(draw.theirs for draw in draws)), size)
    by_draw = [ratio(draw.ours, draw.size) for draw in draws]
    worst_draw = by_draw.index(max(by_draw))
    if dtype is torch.float32:
        eager_worst = max(ratio(draw.theirs, draw.size) for draw in draws)
        limit = max(MODEL_FLOAT32_NORM, MODEL_FLOAT32_ERROR * eager_worst)
        whole = _bounded("norm", Measured(by_draw[worst_draw], (worst_draw,)), eager_worst, limit)
    else:
        error = ratio(math.hypot(*(draw.ours for draw in draws)), size)
        limit = MODEL_ERROR * eager_error
        whole = _bounded("norm", Measured(error, (worst_draw,)), eager_error, limit)
    difference = Measured(ratio(math.hypot(*(draw.apart for draw in draws)), size), None)
    own = max(eager_error, torch.finfo(dtype).eps / 2)
    return (whole, _bounded("difference", difference, eager_error, MODEL_DIFFERENCE * own))


def check_model(
    fused: Sequence[Tensor], eager: Sequence[Tensor], references: Sequence[Tensor]
) -> tuple[NumericsResult, ...]:
    """`judge_draws` of draws that are all at hand. Raises ValueError for fewer than 16."""
    _require_draws(fused, references, eager)
    return judge_draws([*map(measure_draw, fused, eager, references)])


def _mismatch(out: Tensor, reference: Tensor, dtype: torch.dtype) -> NumericsResult | None:
    """A failed "shape" or "dtype" result, or None when both are right and the dtype has rules."""
    if out.shape != reference.shape:
        return NumericsResult("shape", None, None, 0.0, False)
    kinds_differ = (out.is_floating_point(), out.is_complex()) != (
        reference.is_floating_point(),
        reference.is_complex(),
    )
    part = out.dtype.to_real() if out.is_complex() else out.dtype
    has_rule = part in TOLERANCES or not part.is_floating_point
    if out.dtype is not dtype or kinds_differ or not has_rule:
        return NumericsResult("dtype", None, None, 0.0, False)
    return None


def _parts(value: Tensor) -> Tensor:
    """[..., n] complex as [..., 2 n] real."""
    return torch.view_as_real(value.resolve_conj().reshape(*value.shape or (1,))).flatten(-2)


def _exact(out: Tensor, reference: Tensor, eager: Tensor | None) -> NumericsResult:
    eager_wrong = None if eager is None else eager != reference
    return _counted("exact", out != reference, eager_wrong)


def _nonfinite(out: Tensor, rounded: Tensor, eager: Tensor | None) -> NumericsResult:
    eager_wrong = None if eager is None else misplaced(eager, rounded)
    return _counted("nonfinite", misplaced(out, rounded), eager_wrong)


def _counted(name: str, wrong: Tensor, eager_wrong: Tensor | None) -> NumericsResult:
    """The number of wrong elements, which must be none, and where the first one is."""
    count = int(wrong.sum())
    where = unravel(int(wrong.flatten().to(torch.uint8).argmax()), wrong.shape) if count else None
    eager_count = None if eager_wrong is None else float(eager_wrong.sum())
    return NumericsResult(name, float(count), eager_count, 0.0, count == 0, where)


def _floating(out: Tensor, reference: Tensor, eager: Tensor | None) -> tuple[NumericsResult, ...]:
    rule = TOLERANCES[out.dtype]
    rounded = round_once(reference, out.dtype)
    steps = rule.element_unit in ("step", "step_and_row_share")
    limits = {"zero": ZERO_LIMIT, "element": rule.element_limit}
    if rule.row_limit is not None:
        limits["row"] = rule.row_limit
    if rule.norm_limit is not None and out.numel() >= NORM_ELEMENTS:
        limits["norm"] = rule.norm_limit

    def measured(tensor: Tensor) -> dict[str, Measured]:
        return measure(tensor, reference, rounded, rule.element_unit, against_rounded=steps)

    beside = {} if eager is None else measured(eager)
    results = [_nonfinite(out, rounded, eager)]
    for name, found in measured(out).items():
        if name in limits:
            eager_error = beside[name].error if name in beside else None
            results.append(_bounded(name, found, eager_error, limits[name]))
    return tuple(results)


def _bounded(name: str, found: Measured, eager_error: float | None, limit: float) -> NumericsResult:
    # A NaN error compares false, so it fails.
    passed = found.error <= limit
    return NumericsResult(name, found.error, eager_error, limit, passed, found.where)


def _require_draws(
    outs: Sequence[Tensor], references: Sequence[Tensor], eagers: Sequence[Tensor]
) -> None:
    if not len(outs) == len(references) == len(eagers):
        raise ValueError("outputs, references and eager outputs must be as many")
    if len(outs) < MIN_DRAWS:
        raise ValueError(f"{MIN_DRAWS} draws or more are needed, not {len(outs)}")


def _first_broken(
    outs: Sequence[Tensor], references: Sequence[Tensor], eagers: Sequence[Tensor]
) -> NumericsResult | None:
    """The first draw's failure in shape, dtype or the places of NaN and infinities."""
    for draw, tensors in enumerate(zip(outs, references, eagers, strict=True)):
        result = _broken(*tensors)
        if result is not None:
            return replace(result, where=(draw,))
    return None


def _broken(out: Tensor, reference: Tensor, eager: Tensor) -> NumericsResult | None:
    """A failure of one draw in shape, dtype or the places of NaN and infinities."""
    result = _mismatch(out, reference, eager.dtype)
    if result is None and out.is_complex():
        out, reference, eager = map(_parts, (out, reference, eager))
    if result is None and out.dtype.is_floating_point:
        rounded = round_once(reference.to(out.device), out.dtype)
        result = _nonfinite(out, rounded, eager)
    return result if result is not None and not result.passed else None


def _worst_ratio(out: Tensor, reference: Tensor) -> float:
    """The largest error / limit of the rules that have one; misplaced NaN do not count."""
    results = check(out, reference)
    return max(((r.error or 0.0) / r.limit for r in results if r.limit), default=0.0)
