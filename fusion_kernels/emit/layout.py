"""How a region's dimensions become kernel indices: which merge, and where each operand lies.

Dimensions are taken in the memory order of the first output. Neighbours merge into one axis when
every operand walks them as one. The innermost axis becomes `cols` (or, when it is the only one,
flat `offsets`), the others `row`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from fusion_kernels.ir import Input, Region, memory_order


class NotEmitted(Exception):
    """A region no template covers; the message is the reason shown to the user."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Neighbouring dimensions walked as one. `dims` count within the permuted shape, `size` is
    their product.
    """

    dims: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Walk:
    """How one operand is addressed: `dense` operands are contiguous over their own dimensions.

    `steps` holds for each axis whether the operand moves along it.
    """

    dense: bool
    full: bool
    steps: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """`order` permutes the region's dimensions to memory order; `axes` from outer to inner."""

    order: tuple[int, ...]
    axes: tuple[Axis, ...]
    walks: dict[str, Walk]

    @property
    def permuted(self) -> bool:
        return self.order != tuple(range(len(self.order)))


def layout_of(region: Region) -> Layout:
    """The region's axes and every input's walk.

    Raises `NotEmitted` when outputs disagree on memory order, or a row is not one axis.
    """
    order = _memory_order(region)
    shape = tuple(region.shape[d] for d in order)
    dense = {item.name: _is_dense(item, order) for item in region.inputs}
    groups = _merge(region, order, shape, dense)
    axes = tuple(Axis(dims, prod([shape[d] for d in dims])) for dims in groups)
    walks = {
        item.name: Walk(
            dense[item.name],
            item.shape == region.shape and dense[item.name],
            tuple(any(item.shape[order[d]] != 1 for d in axis.dims) for axis in axes),
        )
        for item in region.inputs
    }
    return Layout(order, axes, walks)


def _memory_order(region: Region) -> tuple[int, ...]:
    orders = {_order(region.shape, output.stride) for output in region.outputs}
    if len(orders) > 1:
        raise NotEmitted("outputs lie in memory in different orders")
    order = orders.pop()
    tail = len(order) - region.row_rank
    if region.row_rank and order[tail:] != tuple(range(tail, len(order))):
        raise NotEmitted("a row is not contiguous in memory")
    return order


def _order(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    order = memory_order(shape, stride)
    expected = 1
    for d in reversed(order):
        if shape[d] != 1 and stride[d] != expected and 0 not in shape:
            raise NotEmitted("an output has gaps in memory")
        expected *= shape[d]
    return order


def _is_dense(item: Input, order: tuple[int, ...]) -> bool:
    """Contiguous over the dimensions it has, in memory order."""
    expected = 1
    for d in reversed(order):
        if item.shape[d] == 1:
            continue
        if item.stride[d] != expected:
            return False
        expected *= item.shape[d]
    return True


def _merge(
    region: Region, order: tuple[int, ...], shape: tuple[int, ...], dense: dict[str, bool]
) -> tuple[tuple[int, ...], ...]:
    """Neighbours merge when each dense operand has both or neither, and no strided one moves
    along them.

    A dimension of size 1 joins its neighbour; rows never merge with what is outside of them.
    """
    boundary = len(order) - region.row_rank if region.row_rank else None
    groups: list[list[int]] = []
    for d in range(len(shape)):
        joins = (
            bool(groups) and d != boundary and _walked_as_one(region, order, dense, groups[-1], d)
        )
        if joins:
            groups[-1].append(d)
        else:
            groups.append([d])
    if boundary is not None and sum(group[0] >= boundary for group in groups) > 1:
        raise NotEmitted("a row is not one stretch of memory for every input")
    return tuple(tuple(group) for group in groups) or ((),)


def _walked_as_one(
    region: Region,
    order: tuple[int, ...],
    dense: dict[str, bool],
    group: list[int],
    d: int,
) -> bool:
    sizes = [region.shape[order[g]] for g in group]
    if region.shape[order[d]] == 1 or all(size == 1 for size in sizes):
        return True
    for item in region.inputs:
        moves_inner = item.shape[order[d]] != 1
        moves_outer = {item.shape[order[g]] != 1 for g in group if region.shape[order[g]] != 1}
        if moves_outer != {moves_inner}:
            return False
        if moves_inner and not dense[item.name]:
            return False
    return True
