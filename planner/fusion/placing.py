"""Where tensors lie among the dimensions of a region, and the views that bring them there.

A region runs over slots: axes that its tensors share, and dimensions of one element that the
largest of them has. A tensor whose dimensions line up with the last slots is read as it is. Any
other is divided, permuted and padded by views before the kernel reads it, and a result is brought
back in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import fx

from fusion_kernels.builder import NotLowered
from planner.fusion.axes import Axis, leaves
from planner.fusion.dimensions import Dimensions, Dims, Reduction, sizes_of

aten = torch.ops.aten
Step = tuple[Any, tuple[Any, ...]]
"""A view operator and its arguments after the tensor."""


@dataclass(frozen=True, slots=True)
class Slots:
    """The dimensions of a region in order, None for one that only a size of 1 stands in; the last
    `row_rank` form a row.
    """

    axes: tuple[Axis | None, ...]
    row_rank: int

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(1 if axis is None else axis.size for axis in self.axes)

    @property
    def of_row(self) -> tuple[Axis | None, ...]:
        return self.axes[len(self.axes) - self.row_rank :]


def slots_of(found: Dimensions, nodes: Sequence[fx.Node]) -> Slots:
    """The slots for `nodes`, which stand in the whole region, and what they reduce.

    Raises `NotLowered` where reductions disagree about the row.
    """
    tensors = dict.fromkeys((*(item.source for item in found.reductions), *nodes))
    main = max(tensors, key=lambda node: (len(found.flat(node)), len(found.of(node))))
    axes = [axis for dim in found.of(main) for axis in (dim or (None,))]
    for node in tensors:
        axes += [axis for axis in found.flat(node) if axis not in axes]
    if not found.reductions:
        return Slots(tuple(axes), 0)
    rows = {frozenset(leaves(item.axes)) for item in found.reductions}
    if len(rows) > 1:
        raise NotLowered("two reductions over different dimensions in one region")
    (row,) = rows
    places = [n for n, axis in enumerate(axes) if axis is not None and axis in row]
    if not row:
        places = _of_one_element(found.reductions[0], found, main, len(axes))
    order = [n for n in range(len(axes)) if n not in places] + places
    return Slots(tuple(axes[n] for n in order), len(places))


def lines_up(dims: Dims, slots: Slots) -> bool:
    """Whether the dimensions are those of the last slots, each its own or of one element."""
    missing = len(slots.axes) - len(dims)
    return missing >= 0 and all(
        not own or own == (axis,) for own, axis in zip(dims, slots.axes[missing:], strict=True)
    )


def steps_in(dims: Dims, slots: Slots) -> tuple[Step, ...]:
    """The views after which a tensor of these dimensions lines up with the slots."""
    if lines_up(dims, slots):
        return ()
    steps: list[Step] = []
    for d in reversed(range(len(dims))):
        if len(dims[d]) > 1:
            sizes = [-1, *(axis.size for axis in dims[d][1:])]
            steps.append((aten.unflatten.int, (d, sizes)))
    divided: list[Axis | None] = [axis for dim in dims for axis in (dim or (None,))]
    ones = [d for d, axis in enumerate(divided) if axis is None]
    if ones:
        steps.append((aten.squeeze.dims, (ones,)))
    present = [axis for axis in divided if axis is not None]
    wanted = [axis for axis in slots.axes if axis is not None and axis in present]
    steps += _permuted([present.index(axis) for axis in wanted])
    first = min((n for n, axis in enumerate(slots.axes) if axis in present), default=0)
    for n, axis in enumerate(slots.axes[first:]):
        if axis is None or axis not in present:
            steps.append((aten.unsqueeze.default, (n,)))
    return tuple(steps)


def steps_in_table(dims: Dims, dim: int, slots: Slots) -> tuple[Step, ...]:
    """The same for a table, whose dimension `dim` comes last; `dims` are its others."""
    rank = len(dims) + 1
    steps = _permuted([*(d for d in range(rank) if d != dim), dim])
    for overload, arguments in steps_in(dims, slots):
        if overload is aten.permute.default:
            (order,) = arguments
            steps.append((overload, ([*order, len(order)],)))
        else:
            steps.append((overload, arguments))
    return tuple(steps)


def steps_out(dims: Dims, slots: Slots) -> tuple[Step, ...]:
    """The views that bring a result in the region's dimensions to these."""
    whole = [axis for own in dims for axis in own]
    if len(dims) == len(slots.axes) and lines_up(dims, slots):
        return ()
    places = [slots.axes.index(axis) for axis in whole]
    dropped = [n for n in range(len(slots.axes)) if n not in places]
    steps = _permuted([*places, *dropped])
    if dropped:
        steps.append((aten.squeeze.dims, (list(range(len(places), len(slots.axes))),)))
    merged = [own for own in dims if own]
    for d in reversed(range(len(merged))):
        if len(merged[d]) > 1:
            start = sum(len(own) for own in merged[:d])
            steps.append((aten.flatten.using_ints, (start, start + len(merged[d]) - 1)))
    for d, own in enumerate(dims):
        if not own:
            steps.append((aten.unsqueeze.default, (d,)))
    return tuple(steps)


def sizes_and_strides(
    strides: Sequence[int], dims: Dims, slots: Slots, *, whole: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of a tensor as it lies in memory, one pair a slot: 1 and 0 where it has no such axis. A
    result of one element along a dimension keeps its stride there (`whole`).
    """
    found: dict[Axis, int] = {}
    for own, stride in zip(dims, strides, strict=True):
        for n, axis in enumerate(own):
            found[axis] = stride * prod(inner.size for inner in own[n + 1 :])
    sizes = [axis.size if axis in found and axis else 1 for axis in slots.axes]
    steps = [found.get(axis, 0) if axis else 0 for axis in slots.axes]
    if whole and len(dims) == len(slots.axes) and lines_up(dims, slots):
        steps = list(strides)
    return tuple(sizes), tuple(steps)


def _of_one_element(reduction: Reduction, found: Dimensions, main: fx.Node, rank: int) -> list[int]:
    """The slots of a row whose every dimension has one element."""
    if sizes_of(reduction.source) != sizes_of(main) or len(found.of(main)) != rank:
        raise NotLowered("a row of one element in a region over more")
    if not reduction.dims and sizes_of(reduction.source)[-1] != 1:
        raise NotLowered("a group of one element in a region over more")
    return list(reduction.dims) or [rank - 1]


def _permuted(order: list[int]) -> list[Step]:
    return [] if order == sorted(order) else [(aten.permute.default, (order,))]
