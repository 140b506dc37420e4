"""How operators relate the dimensions of what they read to those of what they return.

For each node of a region it finds, dimension by dimension, the axes that it runs along. Pointwise
operators bring their operands' axes together, views move, split and merge them, reductions drop
some, and a concatenation lays its pieces' axes beside one another along its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor, fx

from fusion_kernels.builder import NotLowered
from fusion_kernels.reductions import REDUCTIONS
from planner.fusion.axes import Axis, join, leaves
from planner.fusion.lookups import LOOKUPS, lookup_of
from planner.graph.view import op_name

CAT, STACK = "aten.cat.default", "aten.stack.default"
_PERMUTING = (
    *("permute.default", "transpose.int", "t.default", "numpy_T.default", "mT.default"),
    *("swapaxes.default", "swapdims.default", "movedim.int", "movedim.intlist"),
    *("moveaxis.int", "moveaxis.intlist"),
)
_MOVING = (
    *_PERMUTING,
    *("unsqueeze.default", "expand.default", "squeeze.default", "squeeze.dim", "squeeze.dims"),
    # The same elements in the same places, by another name.
    *("alias.default", "detach.default"),
)
_RESHAPING = (
    *("view.default", "reshape.default", "_unsafe_view.default", "flatten.using_ints"),
    *("unflatten.int", "_reshape_alias.default", "view_as.default", "reshape_as.default"),
)
PERMUTING = frozenset(f"aten.{name}" for name in _PERMUTING)
MOVING = frozenset(f"aten.{name}" for name in _MOVING)
RESHAPING = frozenset(f"aten.{name}" for name in _RESHAPING)
SLICE = "aten.slice.Tensor"
VIEWS = MOVING | RESHAPING | {SLICE}
"""Operators that see elements of their operand in another shape or order, or some of them."""

_CHANNELS = {
    "aten.prelu.default": ("weight",),
    "aten.batch_norm.default": ("weight", "bias", "running_mean", "running_var"),
    "aten.group_norm.default": ("weight", "bias"),
}
"""Operands with one element a channel, which is dimension 1 of the first operand."""

Dims = tuple[tuple[Axis, ...], ...]
"""For each dimension of a tensor its axes, outermost first; none where it has one element."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Along `whole` a piece of a concatenation stands from `start` to `stop`, where its own axis
    is `part`. Of a slice it holds the elements of `part` from `first` on.
    """

    part: Axis
    whole: Axis
    start: int
    stop: int
    first: int = 0

    @property
    def length(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Reduction:
    """`node` reduces `source` along these axes, its dimensions `dims` where those are whole."""

    node: fx.Node
    source: fx.Node
    dims: tuple[int, ...]
    axes: tuple[Axis, ...]


@dataclass(slots=True)
class Dimensions:
    """What was found: axes a node (`of`), reductions, and the pieces of each concatenation."""

    _axes: dict[fx.Node, list[list[Axis]]] = field(default_factory=dict)
    reductions: list[Reduction] = field(default_factory=list)
    _pieces: dict[fx.Node, list[tuple[fx.Node, Axis, Axis, int, int]]] = field(default_factory=dict)
    _alone: dict[fx.Node, fx.Node] = field(default_factory=dict)
    _slices: dict[fx.Node, tuple[Axis, Axis, int]] = field(default_factory=dict)

    def of(self, node: fx.Node) -> Dims:
        """The node's dimensions as axes that stand for themselves."""
        return tuple(leaves(axes) for axes in self._own(node))

    def flat(self, node: fx.Node) -> tuple[Axis, ...]:
        """All axes of the node, outermost first."""
        return leaves(axis for axes in self._own(node) for axis in axes)

    def pieces(self, node: fx.Node) -> list[tuple[fx.Node, Piece]]:
        """The operands of a concatenation, each with where it stands.

        Raises `NotLowered` where a view divides the dimension that is put together.
        """
        return [
            (source, Piece(_one(part), _one(whole), start, stop))
            for source, part, whole, start, stop in self._pieces[node]
        ]

    def alone(self, node: fx.Node) -> fx.Node | None:
        """What a concatenation copies whose other pieces have no elements, as the empty cache
        before the first token; None for one of several pieces.
        """
        return self._alone.get(node)

    def slice_of(self, node: fx.Node, piece: Piece | None) -> Piece:
        """Where what a slice reads stands, the slice itself standing in `piece`.

        Raises `NotLowered` where a view divides the dimension that is cut.
        """
        whole, part, first = self._slices[node]
        whole, part = _one(whole), _one(part)
        if piece is None or piece.part is not part:
            if piece is not None:
                raise NotLowered("a slice within a piece along another dimension")
            return Piece(whole, part, 0, part.size, first)
        return Piece(whole, piece.whole, piece.start, piece.stop, piece.first + first)

    def put_together(self) -> set[Axis]:
        """The axes along which pieces lie."""
        wholes = (item[2] for found in self._pieces.values() for item in found)
        return set(leaves(wholes))

    def add(self, node: fx.Node) -> None:
        """Relate what `node` returns to what it reads, which was added or stands outside."""
        name = op_name(node)
        if name in MOVING:
            self._axes[node] = self._moved(node)
        elif name in RESHAPING:
            self._axes[node] = self._reshaped(node)
        elif name in REDUCTIONS:
            self._axes[node] = self._reduced(node)
        elif name == SLICE:
            self._axes[node] = self._sliced(node)
        elif name in (CAT, STACK):
            self._axes[node] = self._put_together(node, name == STACK)
        elif name in LOOKUPS:
            self._axes[node] = self._looked_up(node)
        else:
            self._axes[node] = self._broadcast(node, node.all_input_nodes)

    def _own(self, node: fx.Node) -> list[list[Axis]]:
        if node not in self._axes:
            self._axes[node] = [_fresh(size) for size in sizes_of(node)]
        return self._axes[node]

    def _moved(self, node: fx.Node) -> list[list[Axis]]:
        """By what the operator does to a tensor whose every dimension has a stride of its own."""
        source = _first(node)
        own, sizes = self._own(source), sizes_of(source)
        marked = torch.empty_strided(sizes, [n + 2 for n in range(len(sizes))], device="meta")
        moved = _called(node, marked)
        found: list[list[Axis]] = []
        for size, stride in zip(sizes_of(node), moved.stride(), strict=True):
            expanded = size != 1 and not stride
            found.append(_fresh(size) if expanded or size == 1 else own[stride - 2])
        return found

    def _reshaped(self, node: fx.Node) -> list[list[Axis]]:
        source = _first(node)
        if prod(sizes_of(source)) == 0 and sizes_of(source) != sizes_of(node):
            raise NotLowered("a view of a tensor without elements")
        found = [_fresh(size) for size in sizes_of(node)]
        join(self.flat(source), [axis for axes in found for axis in axes])
        return found

    def _reduced(self, node: fx.Node) -> list[list[Axis]]:
        source = _first(node)
        own = self._own(source)
        if op_name(node) == "aten.group_norm.default":
            return self._grouped(node, source)
        dims, kept = _reduced_dims(node, len(own))
        if not own:
            raise NotLowered("a tensor without dimensions has no row")
        axes = tuple(axis for d in dims for axis in own[d])
        self.reductions.append(Reduction(node, source, dims, axes))
        shape = sizes_of(node)
        if shape == sizes_of(source):
            return self._broadcast(node, node.all_input_nodes)
        left: list[list[Axis]] = [[] if d in dims else axes for d, axes in enumerate(own)]
        return left if kept else [axes for d, axes in enumerate(left) if d not in dims]

    def _grouped(self, node: fx.Node, source: fx.Node) -> list[list[Axis]]:
        """A row is the channels of one group and all that follows them."""
        groups, sizes = int(_arguments(node)["num_groups"]), sizes_of(source)
        if not groups or sizes[1] % groups:
            raise NotLowered(f"{sizes[1]} channels in {groups} groups")
        outer, within = _fresh(groups), _fresh(sizes[1] // groups)
        join(self._own(source)[1], [*outer, *within])
        following = [axis for axes in self._own(source)[2:] for axis in axes]
        self.reductions.append(Reduction(node, source, (), (*within, *following)))
        return self._broadcast(node, node.all_input_nodes)

    def _sliced(self, node: fx.Node) -> list[list[Axis]]:
        """A stretch of one dimension has an axis of its own."""
        source, given = _first(node), _arguments(node)
        own, sizes, shape = list(self._own(source)), sizes_of(source), sizes_of(node)
        dim = int(given.get("dim", 0)) % len(shape)
        if given.get("step", 1) != 1:
            raise NotLowered("a slice with steps")
        if shape == sizes:
            return own
        start = given.get("start") or 0
        if not isinstance(start, int) or len(own[dim]) != 1 or shape[dim] < 2:
            raise NotLowered("a slice of one element, or of a dimension that a view divides")
        first = max(start + sizes[dim], 0) if start < 0 else start
        whole, own[dim] = own[dim][0], _fresh(shape[dim])
        self._slices[node] = (whole, own[dim][0], first)
        return own

    def sliced(self, node: fx.Node) -> bool:
        """Whether the node cuts a stretch out of what it reads."""
        return node in self._slices

    def _put_together(self, node: fx.Node, stacked: bool) -> list[list[Axis]]:
        given = _arguments(node)
        sources: Sequence[fx.Node] = given["tensors"]
        shape = sizes_of(node)
        dim: int = given.get("dim", 0) % len(shape)
        if not stacked:
            empty = [source for source in sources if _adds_nothing(sizes_of(source), shape, dim)]
            sources = [source for source in sources if source not in empty] or sources[:1]
        if len(sources) == 1 and sizes_of(sources[0]) == shape:
            self._alone[node] = sources[0]
            return list(self._own(sources[0]))
        found = [_fresh(size) for size in shape]
        start = 0
        self._pieces[node] = pieces = []
        for source in sources:
            own = list(self._own(source))
            if stacked:
                own.insert(dim, [])
            if len(own) != len(shape):
                raise NotLowered("a piece of another rank")
            size = 1 if stacked else sizes_of(source)[dim]
            for d in range(len(shape)):
                if d != dim:
                    join(own[d], found[d])
            if size and found[dim]:
                part = own[dim] or [Axis(size)]
                if len(part) > 1:
                    raise NotLowered("a view divides the dimension of a concatenation")
                pieces.append((source, part[0], found[dim][0], start, start + size))
            start += size
        return found

    def _looked_up(self, node: fx.Node) -> list[list[Axis]]:
        """The index takes the place of the table's dimension, or stands beside its others."""
        found = lookup_of(node)
        if found is None:
            raise NotLowered("a lookup at several indices, or by truth values")
        table, index = list(self._own(found.table)), list(self._own(found.index))
        if not found.elementwise:
            if len(table) + len(index) - 1 != len(sizes_of(node)):
                raise NotLowered("a lookup at one position keeps the table's dimension")
            return [*table[: found.dim], *index, *table[found.dim + 1 :]]
        sizes, wanted = sizes_of(found.table), sizes_of(found.index)
        for d, axes in enumerate(table):
            if d == found.dim:
                continue
            if sizes[d] != wanted[d]:
                raise NotLowered("a lookup in a part of the table")
            join(axes, index[d])
        return index

    def _broadcast(self, node: fx.Node, sources: Sequence[fx.Node]) -> list[list[Axis]]:
        """Aligned from the last dimension, those of one element broadcast."""
        shape = sizes_of(node)
        found: list[list[Axis] | None] = [None if size != 1 else [] for size in shape]
        for source in sources:
            own, own_shape = self._aligned(node, source, len(shape))
            for d, (axes, size) in enumerate(zip(own, own_shape, strict=True)):
                if size == 1:
                    continue
                if size != shape[d]:
                    raise NotLowered(f"shapes that do not broadcast: {own_shape} and {shape}")
                known = found[d]
                if known is None:
                    found[d] = axes
                else:
                    join(known, axes)
        if None in found:
            raise NotLowered("its shape is not the one that its inputs broadcast to")
        return [axes for axes in found if axes is not None]

    def _aligned(
        self, node: fx.Node, source: fx.Node, rank: int
    ) -> tuple[list[list[Axis]], tuple[int, ...]]:
        """The operand's axes and sizes with as many dimensions as the result."""
        own, shape = self._own(source), sizes_of(source)
        after = rank - 2 if self._of_channels(node, source) else 0
        missing = rank - len(own) - after
        if missing < 0:
            raise NotLowered(f"an operand of shape {shape} has more dimensions than the result")
        none: list[list[Axis]] = [[]]
        padded = none * missing + own + none * after
        return padded, (1,) * missing + shape + (1,) * after

    def _of_channels(self, node: fx.Node, source: fx.Node) -> bool:
        names = _CHANNELS.get(op_name(node), ())
        if not names or source is _first(node) or len(sizes_of(source)) != 1:
            return False
        return len(sizes_of(node)) >= 2


def sizes_of(node: fx.Node) -> tuple[int, ...]:
    """The sizes of the tensor that the node returns.

    Raises `NotLowered` where it returns none, or sizes are known only at run time.
    """
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        raise NotLowered(f"{node.name} does not return one tensor")
    if not all(isinstance(n, int) for n in value.shape):
        raise NotLowered(f"{node.name} has a dynamic shape")
    return tuple(value.shape)


def _fresh(size: int) -> list[Axis]:
    return [] if size == 1 else [Axis(size)]


def _adds_nothing(sizes: tuple[int, ...], shape: tuple[int, ...], dim: int) -> bool:
    """Whether a piece has no element along the dimension, or is the empty vector that fits any
    rank, as a cache before the first token is.
    """
    return sizes == (0,) if len(sizes) != len(shape) else not sizes[dim]


def _one(axis: Axis) -> Axis:
    found = leaves((axis,))
    if len(found) != 1:
        raise NotLowered("a view divides the dimension of a concatenation")
    return found[0]


def _first(node: fx.Node) -> fx.Node:
    source = node.args[0]
    if not isinstance(source, fx.Node):
        raise NotLowered(f"{node.name} does not read a tensor first")
    return source


def _called(node: fx.Node, marked: Tensor) -> Tensor:
    target: Any = node.target
    result: Tensor = target(marked, *node.args[1:], **node.kwargs)
    return result


def _reduced_dims(node: fx.Node, rank: int) -> tuple[tuple[int, ...], bool]:
    """The dimensions that a reduction or norm runs over, and whether it keeps them."""
    given = _arguments(node)
    if "normalized_shape" in given:
        return tuple(range(rank - len(given["normalized_shape"]), rank)), True
    dim = given.get("dim")
    named = (dim,) if isinstance(dim, int) else tuple(dim or ())
    dims = sorted({d % max(rank, 1) for d in named}) or list(range(rank))
    return tuple(dims), bool(given.get("keepdim", False))


def _arguments(node: fx.Node) -> dict[str, Any]:
    """The node's arguments by their schema's names, without defaults."""
    schema: Any = node.target._schema  # type: ignore[union-attr]
    names = [argument.name for argument in schema.arguments]
    return dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
