"""A set of graph nodes becomes a region: inputs placed, statements in order, outputs where others
read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import fx

from fusion_kernels.builder import Builder, NotLowered
from fusion_kernels.ir import Output, Window
from fusion_kernels.lowering import LOWERINGS
from fusion_kernels.rule import Match
from planner.fusion.axes import Axis
from planner.fusion.comparisons import compared_dtype, is_rounded, rounded_number
from planner.fusion.dimensions import CAT, STACK, VIEWS, Dimensions, Dims, Piece
from planner.fusion.lookups import LOOKUPS, Lookup, lookup_of
from planner.fusion.lowered import LoweredRegion, Read
from planner.fusion.placing import (
    Slots,
    Step,
    lines_up,
    sizes_and_strides,
    slots_of,
    steps_in,
    steps_in_table,
    steps_out,
)
from planner.fusion.precision import unrounded
from planner.fusion.promotion import wrapped_operands
from planner.fusion.windows import Windows, operands_in, pieces_in, windows_of
from planner.graph.view import op_name

Hint = Callable[[fx.Node], str]
_Place = tuple[fx.Node, Piece | None]
TABLE = Piece(Axis(0), Axis(0), 0, 0)
"""Where a lookup finds its table: no piece of anything."""


def lower(nodes: Sequence[fx.Node], name: str, hint: Hint) -> LoweredRegion:
    """The region that computes `nodes` (in graph order); values read outside become outputs.

    Views cost nothing: those that only others read are left out, those that others read too stay
    in the graph beside the region. Raises `NotLowered` with the reason when a node has no
    expression, or when an output is neither as large as what the region runs over nor one value a
    row.
    """
    nodes = without_last_views(nodes)
    kept = _kept_views(nodes)
    results = _results(nodes, kept)
    if not results:
        raise NotLowered("nothing reads its result")
    found = Dimensions()
    for node in nodes:
        found.add(node)
    windows = windows_of(nodes, results, found)
    if any(piece is not None for item in found.reductions for piece in windows[item.node]):
        raise NotLowered("a reduction within a piece of a concatenation")
    slots = slots_of(found, [node for node in nodes if None in windows[node]])
    _require_distinct(nodes, windows, found, slots)
    builder = Builder(slots.row_rank, prod(slots.shape[len(slots.shape) - slots.row_rank :]))
    declared = _Declared(builder, found, slots, hint)
    for node, piece in _inputs(nodes, windows, found):
        declared.read(node, piece)
    lookups = [lookup for lookup in map(lookup_of, nodes) if lookup is not None]
    for lookup in lookups:
        declared.table(lookup)
    # What has no elements is not read, but the operators are called with it.
    rest = dict.fromkeys(source for node in nodes for source in node.all_input_nodes)
    declared.inputs += [n for n in rest if n not in windows and n not in declared.inputs]
    names, inputs = declared.names, tuple(declared.inputs)
    left_out = unrounded(nodes, results)
    for node in nodes:
        for piece in windows[node]:
            if node in left_out:
                names[node, piece] = names[operands_in(node, piece, found)[0]]
            else:
                names[node, piece] = _lower_node(builder, node, names, piece, found, slots)
    outputs = tuple(_output(node, names, windows, found, slots) for node in results)
    region = builder.finish(name, slots.shape, outputs)
    if not region.row_length:
        raise NotLowered("a row without elements is left to eager")
    return LoweredRegion(
        region,
        inputs,
        tuple(nodes),
        tuple(results),
        tuple(declared.reads),
        tuple(steps_out(found.of(node), slots) for node in results),
        {node: _places(node, found, slots) for node in (*inputs, *nodes)},
        frozenset(kept),
        {lookup.table: lookup.dim for lookup in lookups},
        left_out,
    )


def input_hint(parameters: Mapping[str, str]) -> Hint:
    """Names for region inputs: a parameter's own last name ("weight"), else the producing
    operator's.
    """

    def hint(node: fx.Node) -> str:
        if node.name in parameters:
            return parameters[node.name].rsplit(".", 1)[-1]
        return node.name

    return hint


def bound_hint(matches: Sequence[Match], fallback: Hint) -> Hint:
    """The rules' own parameter names for what their matches bind, the first one's where two bind
    the same; else `fallback`.
    """
    names = {
        value: name
        for match in reversed(matches)
        for name, value in match.bindings.items()
        if isinstance(value, fx.Node)
    }
    return lambda node: names.get(node) or fallback(node)


def without_last_views(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """The nodes less the views that none of them reads."""
    left = set(nodes)
    for node in reversed(nodes):
        if is_view(node) and node.users and left.isdisjoint(node.users):
            left.remove(node)
    return [node for node in nodes if node in left]


def is_view(node: fx.Node) -> bool:
    """Whether the node sees its operand's elements in another shape or order."""
    return op_name(node) in VIEWS


def _kept_views(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """The views among the nodes that are needed outside, by themselves or by another such view."""
    inside, kept = set(nodes), set[fx.Node]()
    for node in reversed(nodes):
        if is_view(node) and any(user not in inside or user in kept for user in node.users):
            kept.add(node)
    return kept


def _results(nodes: Sequence[fx.Node], kept: Collection[fx.Node]) -> list[fx.Node]:
    """What is computed here and read outside, or by a view that is."""
    inside = set(nodes)
    return [
        node
        for node in nodes
        if not is_view(node) and any(user not in inside or user in kept for user in node.users)
    ]


def _inputs(nodes: Sequence[fx.Node], windows: Windows, found: Dimensions) -> list[_Place]:
    """What is read from outside, and in which pieces."""
    places: dict[_Place, None] = {}
    for node in nodes:
        for piece in windows[node]:
            for source, own in operands_in(node, piece, found):
                if source not in windows:
                    places[source, own] = None
    return list(places)


class _Declared:
    """The region's inputs as they are declared: a name for each place, and how each is read."""

    def __init__(self, builder: Builder, found: Dimensions, slots: Slots, hint: Hint) -> None:
        self._builder, self._found, self._slots, self._hint = builder, found, slots, hint
        self.names: dict[_Place, str] = {}
        self.inputs: list[fx.Node] = []
        self.reads: list[Read] = []

    def read(self, node: fx.Node, piece: Piece | None) -> None:
        within, window = _within(self._slots, piece)
        dims = self._found.of(node)
        steps = (*_cut(dims, piece), *steps_in(dims, within))
        name = self._input(node, dims, steps, within, window=window)
        self.names[node, piece] = name

    def table(self, lookup: Lookup) -> None:
        """What is looked up, its dimension of positions last. The place is that of the lookup."""
        node, dims = lookup.table, list(self._found.of(lookup.table))
        del dims[lookup.dim]
        steps = steps_in_table(tuple(dims), lookup.dim, self._slots)
        name = self._input(node, tuple(dims), steps, self._slots, dim=lookup.dim)
        self.names[lookup.node, TABLE] = name

    def _input(
        self,
        node: fx.Node,
        dims: Dims,
        steps: tuple[Step, ...],
        slots: Slots,
        window: Window | None = None,
        dim: int | None = None,
    ) -> str:
        strides = [int(s) for s in node.meta["val"].stride()]
        if dim is not None:
            del strides[dim]
        sizes, moves = sizes_and_strides(strides, dims, slots, whole=False)
        if window is not None:
            n = window.dim % len(sizes)
            sizes = (*sizes[:n], window.stop - window.start, *sizes[n + 1 :])
        rank = len(dims) if lines_up(dims, slots) else _rank(sizes)
        if node not in self.inputs:
            self.inputs.append(node)
        self.reads.append(Read(self.inputs.index(node), steps))
        dtype = str(node.meta["val"].dtype).removeprefix("torch.")
        hint, is_table = self._hint(node), dim is not None
        return self._builder.input(hint, dtype, sizes, moves, rank, window, table=is_table)


def _cut(dims: Dims, piece: Piece | None) -> tuple[Step, ...]:
    """The view that leaves of a tensor what a slice reads."""
    if piece is None or (not piece.first and piece.length == piece.part.size):
        return ()
    places = [d for d, own in enumerate(dims) if own == (piece.part,)]
    if len(places) != 1:
        raise NotLowered("a slice of a dimension that a view divides")
    last = piece.first + piece.length
    return ((torch.ops.aten.slice.Tensor, (places[0], piece.first, last)),)


def _require_distinct(
    nodes: Sequence[fx.Node], windows: Windows, found: Dimensions, slots: Slots
) -> None:
    """No tensor runs along one axis twice, each runs along the region's alone, and every axis of
    the region is one of an input.
    """
    read: set[Axis] = set()
    for lookup in map(lookup_of, nodes):
        if lookup is not None:
            if lookup.table in windows or lookup.index in windows:
                raise NotLowered("what is looked up, or where, is computed in the region")
            table = [own for d, own in enumerate(found.of(lookup.table)) if d != lookup.dim]
            read.update(axis for own in table for axis in own)
    inside = {(node, piece) for node in nodes for piece in windows[node]}
    for node, piece in (*_inputs(nodes, windows, found), *inside):
        axes = [_placed(axis, piece) for axis in found.flat(node)]
        if len(set(axes)) != len(axes):
            raise NotLowered(f"{node.name} runs along one dimension of the region twice")
        if not set(axes).issubset(slots.axes):
            raise NotLowered(f"{node.name} has a dimension that the region has not")
        if (node, piece) not in inside:
            read.update(axes)
    cut = found.put_together()
    if not read.issuperset(axis for axis in slots.axes if axis is not None and axis not in cut):
        raise NotLowered("its shape is not the one that its inputs broadcast to")


def _within(slots: Slots, piece: Piece | None) -> tuple[Slots, Window | None]:
    """The slots for what stands in a piece, and where along which of them that is."""
    if piece is None:
        return slots, None
    n = slots.axes.index(piece.whole)
    axes = (*slots.axes[:n], piece.part, *slots.axes[n + 1 :])
    if n == 0:
        raise NotLowered("a concatenation along the leading dimension")
    if piece.part is not piece.whole and piece.part in slots.axes:
        raise NotLowered("a piece of a concatenation runs beside it along the same dimension")
    return Slots(axes, slots.row_rank), Window(n - len(slots.axes), piece.start, piece.stop)


def _placed(axis: Axis, piece: Piece | None) -> Axis:
    return piece.whole if piece is not None and axis is piece.part else axis


def _rank(sizes: Sequence[int]) -> int:
    """Dimensions from the first that has more than one element on."""
    return next((len(sizes) - n for n, size in enumerate(sizes) if size != 1), 0)


def _places(node: fx.Node, found: Dimensions, slots: Slots) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(slots.axes.index(axis) for axis in own if axis in slots.axes)
        for own in found.of(node)
    )


def _lower_node(
    builder: Builder,
    node: fx.Node,
    names: Mapping[_Place, str],
    piece: Piece | None,
    found: Dimensions,
    slots: Slots,
) -> str:
    op = op_name(node)
    if op in VIEWS:
        return names[operands_in(node, piece, found)[0]]
    if op not in LOWERINGS and op not in (CAT, STACK) and op not in LOOKUPS:
        raise NotLowered(f"{op} has no kernel expression")
    dtype = str(node.meta["val"].dtype).removeprefix("torch.")
    builder.at(node.name, str(node.target).split(".")[1].strip("_"), dtype)
    if op in (CAT, STACK):
        return builder.name_result(_concatenate(builder, node, names, piece, found, slots))
    own = dict(operands_in(node, piece, found))
    if op in LOOKUPS:
        (place,) = operands_in(node, piece, found)
        index = _counted_from_the_end(builder, lookup_of(node), names[place])
        return builder.name_result(builder.gather(names[node, TABLE], index))
    operands = [_operand(arg, names, own) for arg in node.args]
    args = _compared(builder, node, _wrapped(builder, node, operands))
    kwargs = {key: _operand(arg, names, own) for key, arg in node.kwargs.items()}
    return builder.name_result(LOWERINGS[op](builder, *args, **kwargs))


def _counted_from_the_end(builder: Builder, lookup: Lookup | None, index: str) -> str:
    """Positions that are negative where the operator lets them."""
    if lookup is None or not lookup.wraps:
        return index
    later = builder.apply("add", index, int(lookup.table.meta["val"].shape[lookup.dim]))
    return builder.apply("where", builder.apply("lt", index, 0), later, index)


def _wrapped(builder: Builder, node: fx.Node, operands: Sequence[Any]) -> list[Any]:
    """The operands, integers without dimensions in the dtype that eager brings them to."""
    dtypes: dict[Any, torch.dtype] = dict(wrapped_operands(node))
    if not dtypes:
        return list(operands)
    pairs = zip(node.args, operands, strict=True)
    return [_rounded(builder, x, dtypes[arg]) if arg in dtypes else x for arg, x in pairs]


def _compared(builder: Builder, node: fx.Node, operands: list[Any]) -> list[Any]:
    """The operands of a comparison in 16 bits as eager rounds them; all others as they are."""
    dtype = compared_dtype(node)
    if dtype is None or dtype.itemsize > 2:
        return operands
    pairs = zip(node.args, operands, strict=True)
    return [
        _rounded(builder, value, dtype) if is_rounded(arg, dtype) else value for arg, value in pairs
    ]


def _rounded(builder: Builder, value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, str):
        return builder.cast(value, str(dtype).removeprefix("torch."))
    return rounded_number(value, dtype)


def _concatenate(
    builder: Builder,
    node: fx.Node,
    names: Mapping[_Place, str],
    piece: Piece | None,
    found: Dimensions,
    slots: Slots,
) -> str:
    if found.alone(node) is not None:
        return builder.copy(names[operands_in(node, piece, found)[0]])
    if piece is None and not found.pieces(node):
        raise NotLowered("a concatenation that gives one element")
    whole = piece.whole if piece is not None else found.pieces(node)[0][1].whole
    dim = slots.axes.index(whole)
    if dim == 0:
        raise NotLowered("a concatenation along the leading dimension")
    start = piece.start if piece is not None else 0
    placed = pieces_in(node, piece, found)
    values = [(names[item.source, item.piece], item.stop) for item in placed]
    return builder.cat(dim - len(slots.axes), start, values)


def _operand(value: Any, names: Mapping[_Place, str], own: Mapping[fx.Node, Piece | None]) -> Any:
    if isinstance(value, fx.Node):
        return names[value, own[value]]
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return value


def _output(
    node: fx.Node,
    names: Mapping[_Place, str],
    windows: Windows,
    found: Dimensions,
    slots: Slots,
) -> Output:
    """As large as the region, or one value a row."""
    if any(piece is not None for piece in windows[node]) and None not in windows[node]:
        raise NotLowered(f"{node.name} is a piece of a concatenation and read elsewhere")
    own = set(found.flat(node))
    whole = {axis for axis in slots.axes if axis is not None}
    if own != whole and own != whole.difference(slots.of_row):
        raise NotLowered(
            f"{node.name} of shape {tuple(node.meta['val'].shape)} is read elsewhere, the region "
            f"runs over {slots.shape}"
        )
    own_strides = [int(s) for s in node.meta["val"].stride()]
    sizes, strides = sizes_and_strides(own_strides, found.of(node), slots, whole=True)
    dtype = str(node.meta["val"].dtype).removeprefix("torch.")
    return Output(names[node, None], dtype, sizes, strides)
