"""Errors of a tensor against its float64 reference, without judging them: by element, row, norm.

A *row* is the last dimension, after trailing dimensions of size 1 are dropped, so that statistics
kept as `[rows, 1]` are measured like those returned as `[rows]`. Everything is computed in
float64 on the output's device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fusion_kernels.rounding import round_once, step_at

Unit = Literal["value_or_one", "row_largest", "step_and_row_share", "step"]

ROW_SHARE = 1e-5


@dataclass(frozen=True, slots=True)
class Measured:
    """The largest error of one measure, and the index of the element or row that has it."""

    error: float
    where: tuple[int, ...] | None


def measure(
    out: Tensor, reference: Tensor, rounded: Tensor, unit: Unit, *, against_rounded: bool
) -> dict[str, Measured]:
    """Errors over the elements where both `out` and `rounded` are finite.

    `reference` is float64, `rounded` the same rounded to `out`'s dtype; all three share one shape
    with at least one element. `against_rounded` measures the distance to `rounded` instead of
    `reference`. "zero": |out| where `reference` is exactly 0 (absent when it nowhere is).
    "element": |difference| / unit. "row": ||difference|| / ||target|| of a row. "norm": the same
    of the whole tensor. A row whose reference is zero has no scale of its own: "zero" alone
    measures it.
    """
    errors = _errors(out, reference, rounded, unit, against_rounded)
    found: dict[str, Measured] = {}
    if bool(errors.is_zero.any()):
        error, index = worst(errors.zero)
        found["zero"] = Measured(error, unravel(index, out.shape))
    error, index = worst(errors.element)
    found["element"] = Measured(error, unravel(index, out.shape))
    error, index = worst(errors.row)
    found["row"] = Measured(error, unravel(index, _row_shape(out.shape)[:-1]))
    if bool(errors.scaled.any()):
        found["norm"] = Measured(ratio(norm(errors.difference), norm(errors.target)), None)
    return found


def measure_rows(
    out: Tensor, reference: Tensor, rounded: Tensor, unit: Unit, *, against_rounded: bool
) -> dict[str, Tensor]:
    """The largest "zero" and "element" and the "row" error of `measure` in every row: [rows]."""
    errors = _errors(out, reference, rounded, unit, against_rounded)
    zero, element = errors.zero.amax(dim=1), errors.element.amax(dim=1)
    return {"zero": zero, "element": element, "row": errors.row}


def as_rows(tensor: Tensor) -> Tensor:
    """[rows, columns] of a tensor of any shape with at least one element."""
    shape = _row_shape(tensor.shape)
    return tensor.reshape(math.prod(shape[:-1]), shape[-1] if shape else 1)


def misplaced(out: Tensor, rounded: Tensor) -> Tensor:
    """Where NaN or an infinity (with its sign) stands in one of the two and not in the other."""
    ours, theirs = out.double(), rounded.double()
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    return ~(same | (ours.isfinite() & theirs.isfinite()))


def error_of(out: Tensor, reference: Tensor, *, other: Tensor | None = None) -> Tensor:
    """|out - reference| (or |out - other|) in float64, 0 where any of them is not finite."""
    rounded = round_once(reference.to(out.device), out.dtype).double()
    against = reference.to(out.device) if other is None else other.double()
    finite = out.double().isfinite() & rounded.isfinite() & against.isfinite()
    return torch.where(finite, out.double() - against, 0.0).abs_()


def norm(values: Tensor) -> float:
    """The Euclidean norm of all elements."""
    return float(values.norm())


def ratio(part: float, whole: float) -> float:
    """part / whole; of nothing, 0 when the part is nothing too, else infinity."""
    if whole > 0.0:
        return part / whole
    return 0.0 if part == 0.0 else math.inf


def worst(errors: Tensor) -> tuple[float, int]:
    """The largest value and its flat index."""
    index = int(errors.argmax())
    return float(errors.flatten()[index]), index


def unravel(index: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The index in `shape` of a flat, row-major index."""
    position: list[int] = []
    for size in reversed(shape):
        position.append(index % size)
        index //= size
    return tuple(reversed(position))


@dataclass(frozen=True, slots=True)
class _Errors:
    """Of every element ([rows, columns]) and of every row ([rows]). `scaled` ([rows, 1]) tells
    which rows have a reference that is not zero.
    """

    difference: Tensor
    target: Tensor
    scaled: Tensor
    is_zero: Tensor
    zero: Tensor
    element: Tensor
    row: Tensor


def _errors(
    out: Tensor, reference: Tensor, rounded: Tensor, unit: Unit, against_rounded: bool
) -> _Errors:
    values, rounded = as_rows(out.double()), as_rows(rounded)
    finite = values.isfinite() & rounded.double().isfinite()
    exact = torch.where(finite, as_rows(reference), 0.0)
    target = torch.where(finite, rounded.double(), 0.0) if against_rounded else exact
    difference = torch.where(finite, values - target, 0.0).abs_()
    largest = exact.abs().amax(dim=1, keepdim=True)
    scaled = largest > 0.0
    is_zero = finite & (exact == 0.0)
    size = _element_unit(unit, exact, rounded, largest)
    # Divided by the row's largest value, the squares cannot overflow.
    scale = torch.where(scaled, largest, 1.0)
    by_row = (difference / scale).norm(dim=1) / (target / scale).norm(dim=1)
    return _Errors(
        difference,
        target,
        scaled,
        is_zero,
        torch.where(is_zero, difference, 0.0),
        torch.where(scaled, difference / size, 0.0),
        torch.where(scaled.squeeze(1), by_row, 0.0),
    )


def _element_unit(unit: Unit, exact: Tensor, rounded: Tensor, largest: Tensor) -> Tensor:
    if unit == "value_or_one":
        return exact.abs().clamp_(min=1.0)
    if unit == "row_largest":
        return largest
    step = step_at(rounded)
    return step if unit == "step" else step + ROW_SHARE * largest


def _row_shape(shape: torch.Size) -> tuple[int, ...]:
    """The shape without trailing dimensions of size 1: its last one is the row."""
    end = len(shape)
    while end and shape[end - 1] == 1:
        end -= 1
    return tuple(shape[:end])
