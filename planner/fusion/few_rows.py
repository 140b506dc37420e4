"""The sizes at which a region is checked often: as few rows as a kernel's mistakes show in."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, prod

from planner.fusion.lowered import LoweredRegion
from planner.fusion.reference import free_dims

_DIVIDES = 16
"""What Triton asks of a size or stride: a kernel is compiled anew where it stops dividing one."""
_LEADING = 2
_LEAST = 8
"""A shortened dimension stays longer than most pieces that programs share it in."""


def few_rows(lowered: LoweredRegion, most: int) -> dict[int, int]:
    """Dimensions of the region with smaller sizes, at which it has at most so many elements where
    that can be.

    Rows are independent, so what a kernel computes of one does not depend on how many there are.
    Of the leading dimension two indices stay, so that it can be expanded, and as many more as
    there is room for. The others are shortened where two of its indices hold more than `most`,
    outermost first, to 16 or to another small number that the same powers of two divide.
    """
    shape, free = lowered.region.shape, free_dims(lowered)
    sizes = dict(enumerate(shape))
    for dim in free:
        if dim and _LEADING * _inner(sizes) > most:
            sizes[dim] = min(sizes[dim], _short(sizes[dim]))
    if 0 in free:
        sizes[0] = min(shape[0], max(_LEADING, most // max(_inner(sizes), 1)))
    return {dim: sizes[dim] for dim in free if sizes[dim] != shape[dim]}


def _inner(sizes: Mapping[int, int]) -> int:
    """Elements that one index of the leading dimension holds."""
    return prod(size for dim, size in sizes.items() if dim)


def _short(size: int) -> int:
    shared = gcd(size, _DIVIDES)
    return shared * (_LEAST // shared | 1)
