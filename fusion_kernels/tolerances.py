"""The numerics contract as one table, and the checks that hold a result against it.

Words: `ref` is the float64 (or exact integer) reference; `RN(ref)` is it rounded once to the
output's dtype; a *step* is the distance from `RN(ref)` to the next value of larger magnitude; a
*row* is the last dimension, after trailing dimensions of size 1 are dropped, so that statistics
kept as `[rows, 1]` are judged like those returned as `[rows]`. A complex tensor is judged by its
real and imaginary parts, which lie side by side in its rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fusion_kernels.measures import (
    Measured,
    Unit,
    as_rows,
    error_of,
    measure,
    measure_rows,
    misplaced,
    norm,
    unravel,
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
NEARBY_SHARE = 0.5
"""A kernel with at most twice float32's error misses the line only where float32 comes to half."""
FLIPPED = 4.0
"""Error over limit that a cast which rounds the other way comes to, not more."""
MIN_DRAWS = 16

Nearby = Callable[[int], Iterable[tuple[Tensor, Tensor]]]
"""Of a draw: float32's results on inputs near it, in the output's dtype, with their references."""

_SMALLEST_NORMAL = torch.finfo(torch.float32).smallest_normal
"""Below it processors may keep few digits or none, each as it likes."""

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
        problem = mismatch(out, reference, expected)
        if problem is not None:
            return (problem,)
        if out.is_complex():
            beside = None if eager is None else parts(eager)
            return check(parts(out), parts(reference), eager=beside)
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
    nearby: Nearby | None = None,
) -> tuple[NumericsResult, ...]:
    """The clause for inputs where float32 arithmetic itself cannot meet the line, over 16 draws
    or more of one shape: a matter of rows.

    `float32` holds the same program run operator by operator in float32 and rounded once to the
    output's dtype; for float32 outputs it is `eagers` and may be left out. A row is
    ill-conditioned where `float32` misses a line of `check` (all rows of a draw where it misses
    but the norm of the rest). As rounding is at times lucky, `nearby(draw)` gives more of such
    results with their references, on inputs close by: asked for where `outs` misses the
    line in other rows, it adds those where float32 misses the line too, or, where the line is not
    a matter of steps, comes to `NEARBY_SHARE` of it. A value near a tie that the program casts to
    16 bits may round either way in any row, and what is made of it is a few steps off where
    nothing foretells it: where steps count and `float32` misses by `FLIPPED` or less, all rows
    are held to eager.

    The first result, "conditioning", tells whether there is any such row: its `eager_error` is
    the largest of error / limit that `float32` reaches, infinite where it overflows; at 1 or
    below it fails and stands alone. "nonfinite" counts NaN and infinities as `check` does, except
    where `float32` and eager both have them wrong: there any value will do (`eager_error` counts
    all that eager has wrong, in all draws). Rows that are not ill-conditioned are held to
    `check`, by the worst draw of each measure. Those that are, of all draws together, are held to
    eager in |out - ref| / max(1, the row's largest |ref|), so that no row's size hides another:
    "largest" (limit: twice eager's) and the root mean square "rms" (limit: 1.1 times eager's). A
    row of `outs` that meets the line all the same counts at most as eager's, and errors below
    float32's normal numbers count nothing. Where only eager
    overflows, `float32` stands in for it. `where` is the draw. Raises ValueError for fewer than
    16 draws, and when `float32` is missing for another dtype.
    """
    require_draws(outs, references, eagers)
    if float32 is None:
        if outs[0].dtype is not torch.float32:
            raise ValueError(f"{outs[0].dtype} outputs need the float32 evaluation as `float32`")
        float32 = eagers
    if any(beside.dtype is not outs[0].dtype for beside in float32):
        raise ValueError("the float32 evaluation must be rounded to the outputs' dtype")
    with torch.no_grad():
        needed = max(map(_worst_ratio, float32, references))
        conditioning = NumericsResult("conditioning", None, needed, 1.0, needed > 1.0)
        if not conditioning.passed:
            return (conditioning,)
        rule = TOLERANCES.get(outs[0].dtype)
        flips = rule is not None and _by_steps(rule) and needed <= FLIPPED
        judged = []
        for draw, tensors in enumerate(zip(outs, references, eagers, float32, strict=True)):
            problem = mismatch(*tensors[:2], tensors[2].dtype)
            if problem is not None:
                return (conditioning, replace(problem, where=(draw,)))
            near = nearby(draw) if nearby is not None else ()
            judged.append(_judge_rows(*tensors, near, flips=flips))
        return (conditioning, *_worst_by_measure(judged), *_against_eager(judged))


def mismatch(out: Tensor, reference: Tensor, dtype: torch.dtype) -> NumericsResult | None:
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


def parts(value: Tensor) -> Tensor:
    """[..., n] complex as [..., 2 n] real."""
    return torch.view_as_real(value.resolve_conj().reshape(*value.shape or (1,))).flatten(-2)


def _exact(out: Tensor, reference: Tensor, eager: Tensor | None) -> NumericsResult:
    eager_wrong = None if eager is None else eager != reference
    return _counted("exact", out != reference, eager_wrong)


def nonfinite(out: Tensor, rounded: Tensor, eager: Tensor | None) -> NumericsResult:
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
    steps = _by_steps(rule)
    limits = _limits(rule)
    if rule.norm_limit is not None and out.numel() >= NORM_ELEMENTS:
        limits["norm"] = rule.norm_limit

    def measured(tensor: Tensor) -> dict[str, Measured]:
        return measure(tensor, reference, rounded, rule.element_unit, against_rounded=steps)

    beside = {} if eager is None else measured(eager)
    results = [nonfinite(out, rounded, eager)]
    for name, found in measured(out).items():
        if name in limits:
            eager_error = beside[name].error if name in beside else None
            results.append(bounded(name, found, eager_error, limits[name]))
    return tuple(results)


def _by_steps(rule: Tolerance) -> bool:
    return rule.element_unit in ("step", "step_and_row_share")


def _limits(rule: Tolerance) -> dict[str, float]:
    """Those of a row's measures."""
    limits = {"zero": ZERO_LIMIT, "element": rule.element_limit}
    return limits if rule.row_limit is None else {**limits, "row": rule.row_limit}


def bounded(name: str, found: Measured, eager_error: float | None, limit: float) -> NumericsResult:
    # A NaN error compares false, so it fails.
    passed = found.error <= limit
    return NumericsResult(name, found.error, eager_error, limit, passed, found.where)


def require_draws(
    outs: Sequence[Tensor], references: Sequence[Tensor], eagers: Sequence[Tensor]
) -> None:
    if not len(outs) == len(references) == len(eagers):
        raise ValueError("outputs, references and eager outputs must be as many")
    if len(outs) < MIN_DRAWS:
        raise ValueError(f"{MIN_DRAWS} draws or more are needed, not {len(outs)}")


@dataclass(frozen=True, slots=True)
class _Rows:
    """One draw: the checks of its well-conditioned rows, and the errors of the others."""

    results: tuple[NumericsResult, ...]
    ours: Tensor
    theirs: Tensor


def _judge_rows(
    out: Tensor,
    reference: Tensor,
    eager: Tensor,
    float32: Tensor,
    nearby: Iterable[tuple[Tensor, Tensor]],
    *,
    flips: bool,
) -> _Rows:
    reference = reference.to(out.device)
    if out.is_complex():
        out, reference, eager, float32 = map(parts, (out, reference, eager, float32))
        nearby = ((parts(near), parts(ref)) for near, ref in nearby)
    rounded = round_once(reference, out.dtype)
    overflows, of_eager = misplaced(float32, rounded), misplaced(eager, rounded)
    excused = overflows & of_eager
    judged = reference.masked_fill(excused, 0.0)
    missed = _missed(out.masked_fill(excused, 0.0), judged)
    ill = _missed(float32, reference)
    ill = torch.ones_like(ill) if flips else _with_unlucky(ill, missed, out.dtype, nearby)
    results = [_counted("nonfinite", misplaced(out, rounded) & ~excused, of_eager)]
    if not bool(ill.all()):
        well = [as_rows(tensor)[~ill] for tensor in (out, reference, eager)]
        results += check(well[0], well[1], eager=well[2])[1:]
    theirs = torch.where(of_eager, error_of(float32, reference), error_of(eager, reference))
    ours = error_of(out, reference).masked_fill(excused, 0.0)
    ours = torch.where(ours < _SMALLEST_NORMAL, 0.0, ours)
    size = torch.where(rounded.isfinite(), judged, 0.0).abs()
    size = as_rows(size).amax(dim=1, keepdim=True).clamp(min=1.0)
    ours, theirs = (as_rows(errors) / size for errors in (ours, theirs))
    # Eager may be far better than the line asks; who meets it need not be.
    enough = ~missed & (ours.norm(dim=1) > theirs.norm(dim=1))
    ours = torch.where(enough[:, None], theirs, ours)
    return _Rows(tuple(results), ours[ill], theirs[ill])


def _with_unlucky(
    ill: Tensor, missed: Tensor, dtype: torch.dtype, nearby: Iterable[tuple[Tensor, Tensor]]
) -> Tensor:
    """The ill-conditioned rows and, until they hold all that are `missed`, those nearby."""
    if not bool((missed & ~ill).any()):
        return ill
    # A step is either lost or not, so no share of one tells anything.
    share = 1.0 if _by_steps(TOLERANCES[dtype]) else NEARBY_SHARE
    for near, reference in nearby:
        ill = ill | _missed(near, reference, share)
        if not bool((missed & ~ill).any()):
            break
    return ill


def _missed(out: Tensor, reference: Tensor, share: float = 1.0) -> Tensor:
    """[rows]: where a result comes to more than this share of a line; all rows where it is but the
    norm of the rest that does.
    """
    reference = reference.to(out.device)
    rule, rounded = TOLERANCES[out.dtype], round_once(reference, out.dtype)
    missed = as_rows(misplaced(out, rounded)).any(dim=1)
    steps = _by_steps(rule)
    found = measure_rows(out, reference, rounded, rule.element_unit, against_rounded=steps)
    for name, limit in _limits(rule).items():
        missed = missed | ~(found[name] <= share * limit)
    rest = [as_rows(tensor)[~missed] for tensor in (out, reference)]
    if rule.norm_limit is not None and _norm_of(*rest) > share * rule.norm_limit:
        return torch.ones_like(missed)
    return missed


def _norm_of(out: Tensor, reference: Tensor) -> float:
    """The "norm" that `check` measures, 0 of a tensor that is too small for it."""
    if out.numel() < NORM_ELEMENTS:
        return 0.0
    return next((r.error or 0.0 for r in check(out, reference) if r.measure == "norm"), 0.0)


def _worst_by_measure(judged: Sequence[_Rows]) -> tuple[NumericsResult, ...]:
    """The worst draw of each measure; the count of "nonfinite" is that of all."""
    found: dict[str, NumericsResult] = {}
    for draw, rows in enumerate(judged):
        for result in rows.results:
            other = found.get(result.measure)
            if result.measure == "nonfinite" and other is not None:
                found[result.measure] = _together(other, replace(result, where=(draw,)))
            elif other is None or _badness(result) > _badness(other):
                found[result.measure] = replace(result, where=(draw,))
    return tuple(found.values())


def _together(one: NumericsResult, other: NumericsResult) -> NumericsResult:
    """Two counts as one, and where the first that is not 0 is."""
    return replace(
        other if one.passed else one,
        error=(one.error or 0.0) + (other.error or 0.0),
        eager_error=(one.eager_error or 0.0) + (other.eager_error or 0.0),
    )


def _badness(result: NumericsResult) -> tuple[bool, float, float]:
    return not result.passed, result.error or 0.0, result.eager_error or 0.0


def _against_eager(judged: Sequence[_Rows]) -> tuple[NumericsResult, ...]:
    """The ill-conditioned rows of all draws together."""
    by_draw = [float(rows.ours.max()) if rows.ours.numel() else 0.0 for rows in judged]
    eager_largest = max(float(r.theirs.max()) if r.theirs.numel() else 0.0 for r in judged)
    root_count = math.sqrt(max(1, sum(rows.ours.numel() for rows in judged)))
    rms = math.hypot(*(norm(rows.ours) for rows in judged)) / root_count
    eager_rms = math.hypot(*(norm(rows.theirs) for rows in judged)) / root_count
    largest = Measured(max(by_draw), (by_draw.index(max(by_draw)),))
    return (
        bounded("largest", largest, eager_largest, ILL_CONDITIONED_LARGEST * eager_largest),
        bounded("rms", Measured(rms, None), eager_rms, ILL_CONDITIONED_RMS * eager_rms),
    )


def _worst_ratio(out: Tensor, reference: Tensor) -> float:
    """The largest error / limit of `check`; infinity where NaN or infinities are misplaced."""
    results = check(out, reference)
    if any(r.measure == "nonfinite" and not r.passed for r in results):
        return math.inf
    return max(((r.error or 0.0) / r.limit for r in results if r.limit), default=0.0)
