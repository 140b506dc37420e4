"""The numerics contract for whole models: outputs over many draws, held against eager's error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fusion_kernels.measures import Measured, error_of, norm, ratio
from fusion_kernels.rounding import round_once
from fusion_kernels.tolerances import (
    MIN_DRAWS,
    NumericsResult,
    bounded,
    check,
    mismatch,
    nonfinite,
    parts,
    require_draws,
)

MODEL_ERROR = 1.1
MODEL_FLOAT32_NORM = 1e-5
MODEL_FLOAT32_ERROR = 2.0
MODEL_DIFFERENCE = 2.0


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
            fused, reference, eager = map(parts, (fused, reference, eager))
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
        whole = bounded("norm", Measured(by_draw[worst_draw], (worst_draw,)), eager_worst, limit)
    else:
        error = ratio(math.hypot(*(draw.ours for draw in draws)), size)
        limit = MODEL_ERROR * eager_error
        whole = bounded("norm", Measured(error, (worst_draw,)), eager_error, limit)
    difference = Measured(ratio(math.hypot(*(draw.apart for draw in draws)), size), None)
    own = max(eager_error, torch.finfo(dtype).eps / 2)
    return (whole, bounded("difference", difference, eager_error, MODEL_DIFFERENCE * own))


def check_model(
    fused: Sequence[Tensor], eager: Sequence[Tensor], references: Sequence[Tensor]
) -> tuple[NumericsResult, ...]:
    """`judge_draws` of draws that are all at hand. Raises ValueError for fewer than 16."""
    require_draws(fused, references, eager)
    return judge_draws([*map(measure_draw, fused, eager, references)])


def _broken(out: Tensor, reference: Tensor, eager: Tensor) -> NumericsResult | None:
    """A failure of one draw in shape, dtype or the places of NaN and infinities."""
    result = mismatch(out, reference, eager.dtype)
    if result is None and out.is_complex():
        out, reference, eager = map(parts, (out, reference, eager))
    if result is None and out.dtype.is_floating_point:
        rounded = round_once(reference.to(out.device), out.dtype)
        result = nonfinite(out, rounded, eager)
    return result if result is not None and not result.passed else None
