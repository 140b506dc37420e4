"""The sizes at which a region is checked often: as few rows as a kernel's mistakes show in."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, prod

from planner.fusion.lowered import LoweredRegion
from planner.fusion.reference import free_dims

SHORT = 16
"""What Triton asks of a size or stride: a kernel is compiled anew where it stops dividing one."""
_LEADING = 2


def few_rows(
    lowered: LoweredRegion, most: int, short: int = SHORT, *, leading_alone: bool = False
) -> dict[int, int]:
    """Dimensions of the region with smaller sizes, at which it has at most so many elements where
    that can be.

    Rows are independent, so what a kernel computes of one does not depend on how many there are.
    Of the leading dimension two indices stay, so that it can be expanded, and as many more as there
    is room for. The others are shortened where two of its indices hold more than `most`, outermost
    first: to `short`, a power of two, or less than that where it divides no such size, to a number
    that the same powers of two divide. With `leading_alone` they keep their sizes, for which a
    region is compiled on CPU.
    """
    shape, free = lowered.region.shape, free_dims(lowered)
    if leading_alone:
        free = tuple(dim for dim in free if dim == 0)
    sizes = dict(enumerate(shape))
    for dim in free:
        if dim and _LEADING * _inner(sizes) > most:
            sizes[dim] = min(sizes[dim], _alike(sizes[dim], short))
    if 0 in free:
        sizes[0] = min(shape[0], max(_LEADING, most // max(_inner(sizes), 1)))
    return {dim: sizes[dim] for dim in free if sizes[dim] != shape[dim]}


def _inner(sizes: Mapping[int, int]) -> int:
    """Elements that one index of the leading dimension holds."""
    return prod(size for dim, size in sizes.items() if dim)


def _alike(size: int, short: int) -> int:
    shared = gcd(size, short)
    return shared * (short // 2 // shared | 1)
