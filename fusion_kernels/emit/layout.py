"""How a region's dimensions become kernel indices: which merge, and where each operand lies.

Dimensions are taken in memory order, those of the row last. Neighbours merge into one axis when
every operand walks them as one. The axes of the row (or, without rows, the innermost axis) become
`cols`, those before them `row`; a single axis without rows becomes flat `offsets`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from fusion_kernels.ir import Input, Output, Region, memory_order


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
    """`order` permutes the region's dimensions to memory order; `axes` from outer to inner, the
    first `outer` of them outside of the row. `walks` holds inputs and outputs by name.
    """

    order: tuple[int, ...]
    axes: tuple[Axis, ...]
    outer: int
    walks: dict[str, Walk]

    @property
    def permuted(self) -> bool:
        return self.order != tuple(range(len(self.order)))

    def axis_of(self, dim: int) -> int:
        """The axis that a dimension of the region belongs to."""
        position = self.order.index(dim % len(self.order))
        return next(n for n, axis in enumerate(self.axes) if position in axis.dims)

    @property
    def inner_size(self) -> int:
        """Elements of a row, or of the innermost axis."""
        return prod([axis.size for axis in self.axes[self.outer :]])


def layout_of(region: Region) -> Layout:
    """The region's axes and every operand's walk.

    Raises `NotEmitted` for an output with gaps in memory.
    """
    for output in region.outputs:
        _require_dense(output)
    order = _memory_order(region)
    shape = tuple(region.shape[d] for d in order)
    operands: dict[str, Input | Output] = {item.name: item for item in region.inputs}
    operands |= dict(zip(output_names(region), region.outputs, strict=True))
    dense = {name: _is_dense(item, order) for name, item in operands.items()}
    groups = _merge(region, order, operands, dense)
    axes = tuple(Axis(dims, prod([shape[d] for d in dims])) for dims in groups)
    walks = {
        name: Walk(
            dense[name],
            item.shape == region.shape and dense[name],
            tuple(any(item.shape[order[d]] != 1 for d in axis.dims) for axis in axes),
        )
        for name, item in operands.items()
    }
    boundary = len(order) - region.row_rank
    outer = sum(axis.dims[0] < boundary for axis in axes) if region.row_rank else len(axes) - 1
    return Layout(order, axes, outer, walks)


def output_names(region: Region) -> tuple[str, ...]:
    """Names of the outputs: `out`, or `out_` and the value's name when there are several. A value
    that is stored twice has two names.
    """
    if len(region.outputs) == 1:
        return ("out",)
    names: list[str] = []
    for output in region.outputs:
        name = f"out_{output.value}"
        while name in names:
            name += "_again"
        names.append(name)
    return tuple(names)


def _memory_order(region: Region) -> tuple[int, ...]:
    """That of the first operand as large as the region, outputs first; the row's dimensions stay
    last.
    """
    operands: tuple[Input | Output, ...] = (*region.outputs, *region.inputs)
    main = next((item for item in operands if item.shape == region.shape), None)
    if main is None:
        return tuple(range(len(region.shape)))
    tail = len(region.shape) - region.row_rank
    outside = memory_order(region.shape[:tail], main.stride[:tail])
    within = memory_order(region.shape[tail:], main.stride[tail:])
    return (*outside, *(tail + d for d in within))


def _require_dense(output: Output) -> None:
    order = memory_order(output.shape, output.stride)
    if 0 not in output.shape and not _is_dense(output, order):
        raise NotEmitted("an output has gaps in memory")


def _is_dense(item: Input | Output, order: tuple[int, ...]) -> bool:
    """Contiguous over the dimensions it has, in memory order, and all over the region."""
    if isinstance(item, Input) and (item.window is not None or item.table):
        return False
    expected = 1
    for d in reversed(order):
        if item.shape[d] == 1:
            continue
        if item.stride[d] != expected:
            return False
        expected *= item.shape[d]
    return True


def _merge(
    region: Region,
    order: tuple[int, ...],
    operands: dict[str, Input | Output],
    dense: dict[str, bool],
) -> tuple[tuple[int, ...], ...]:
    """Neighbours merge when each dense operand has both or neither, and no strided one moves
    along them.

    A dimension of size 1 joins its neighbour; rows never merge with what is outside of them, nor
    does a dimension along which pieces lie.
    """
    boundary = len(order) - region.row_rank if region.row_rank else None
    groups: list[list[int]] = []
    for d in range(len(order)):
        joins = bool(groups) and d != boundary and not _is_cut(region, order, (d, *groups[-1]))
        if joins and _walked_as_one(region, order, operands, dense, groups[-1], d):
            groups[-1].append(d)
        else:
            groups.append([d])
    return tuple(tuple(group) for group in groups) or ((),)


def _is_cut(region: Region, order: tuple[int, ...], dims: tuple[int, ...]) -> bool:
    return any(order[d] in region.cut for d in dims)


def _walked_as_one(
    region: Region,
    order: tuple[int, ...],
    operands: dict[str, Input | Output],
    dense: dict[str, bool],
    group: list[int],
    d: int,
) -> bool:
    sizes = [region.shape[order[g]] for g in group]
    if region.shape[order[d]] == 1 or all(size == 1 for size in sizes):
        return True
    for name, item in operands.items():
        moves_inner = item.shape[order[d]] != 1
        moves_outer = {item.shape[order[g]] != 1 for g in group if region.shape[order[g]] != 1}
        if moves_outer != {moves_inner}:
            return False
        if moves_inner and not dense[name]:
            return False
    return True
