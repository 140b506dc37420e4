"""Axes that tensors share: the dimensions of many tensors brought down to what they have in common.

An axis starts as one dimension of one tensor. Where two tensors are walked together their axes
become one, and where a view divides a dimension its axis splits into parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fusion_kernels.builder import NotLowered


@dataclass(eq=False, slots=True)
class Axis:
    """`size` elements. Its `parts` say what it became: one other axis, or several whose product
    it is, the outermost first; none while it stands for itself.
    """

    size: int
    parts: tuple[Axis, ...] = ()


def leaves(axes: Iterable[Axis]) -> tuple[Axis, ...]:
    """What the axes are made of by now, the outermost first."""
    found: list[Axis] = []
    for axis in axes:
        found += leaves(axis.parts) if axis.parts else (axis,)
    return tuple(found)


def join(first: Sequence[Axis], second: Sequence[Axis]) -> None:
    """Make two sequences of axes with equally many elements the same, splitting where one divides
    the other.

    Raises `NotLowered` where they have no common parts, as 6 x 4 and 4 x 6 have none.
    """
    left, right = list(leaves(first)), list(leaves(second))
    while left and right:
        one, other = left.pop(0), right.pop(0)
        if one.parts or other.parts:
            left[:0], right[:0] = leaves((one,)), leaves((other,))
        elif one is other:
            continue
        elif one.size == other.size:
            other.parts = (one,)
        elif one.size > other.size:
            left.insert(0, _split(one, other))
        else:
            right.insert(0, _split(other, one))
    if left or right:
        raise NotLowered("a view between shapes without elements")


def _split(axis: Axis, outer: Axis) -> Axis:
    """Divide `axis` by `outer`; returns the rest."""
    if not outer.size or axis.size % outer.size:
        raise NotLowered(f"a view that divides {axis.size} elements by {outer.size}")
    rest = Axis(axis.size // outer.size)
    axis.parts = (outer, rest)
    return rest
