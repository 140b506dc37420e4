"""Where the pieces of concatenations stand within a region.

A value that only a concatenation reads is smaller than the region and stands in a piece of it;
what it is computed from stands in the same one. A value may be needed in several pieces.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from torch import fx

from fusion_kernels.builder import NotLowered
from planner.fusion.dimensions import CAT, STACK, Dimensions, Piece
from planner.fusion.lookups import lookup_of
from planner.graph.view import op_name

Windows = Mapping[fx.Node, Sequence[Piece | None]]


@dataclass(frozen=True, slots=True)
class Placed:
    """An operand of a concatenation: where it is read, and the index at which it ends."""

    source: fx.Node
    piece: Piece | None
    stop: int


def windows_of(
    nodes: Sequence[fx.Node], results: Collection[fx.Node], found: Dimensions
) -> dict[fx.Node, list[Piece | None]]:
    """For each node (in graph order) the pieces it is needed in, None for the whole region, where
    `results` are needed.

    Raises `NotLowered` where pieces lie within pieces along another dimension.
    """
    needed: dict[fx.Node, dict[Piece | None, None]] = {node: {} for node in nodes}
    for node in reversed(nodes):
        if node in results:
            needed[node][None] = None
        for piece in needed[node]:
            for source, own in operands_in(node, piece, found):
                if source in needed:
                    needed[source][own] = None
    return {node: list(pieces) for node, pieces in needed.items()}


def operands_in(
    node: fx.Node, piece: Piece | None, found: Dimensions
) -> list[tuple[fx.Node, Piece | None]]:
    """The node's operands, each with the piece that it is read in where the node stands in
    `piece`. What is the same all along a piece stands in none, and a table nowhere.
    """
    alone = found.alone(node)
    if alone is not None:
        return [(alone, _own(alone, piece, found))]
    if op_name(node) in (CAT, STACK):
        return [(placed.source, placed.piece) for placed in pieces_in(node, piece, found)]
    if found.sliced(node):
        (source,) = node.all_input_nodes
        return [(source, _own(source, found.slice_of(node, piece), found))]
    lookup = lookup_of(node)
    if lookup is not None:
        if piece is not None:
            raise NotLowered("a lookup within a piece of a concatenation")
        return [(lookup.index, None)]
    return [(source, _own(source, piece, found)) for source in node.all_input_nodes]


def pieces_in(node: fx.Node, piece: Piece | None, found: Dimensions) -> list[Placed]:
    """The operands of a concatenation that stands in `piece`."""
    placed = []
    for source, own in found.pieces(node):
        if piece is not None and own.whole is not piece.part:
            raise NotLowered("a concatenation within one along another dimension")
        if piece is not None and (piece.first or piece.length != piece.part.size):
            raise NotLowered("a slice of a concatenation")
        start = piece.start if piece is not None else 0
        whole = piece.whole if piece is not None else own.whole
        inner = Piece(own.part, whole, start + own.start, start + own.stop)
        placed.append(Placed(source, _own(source, inner, found), inner.stop))
    return placed


def _own(source: fx.Node, piece: Piece | None, found: Dimensions) -> Piece | None:
    return piece if piece is not None and piece.part in found.flat(source) else None
