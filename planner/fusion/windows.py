"""Where the pieces of concatenations stand within a region.

A value that only a concatenation reads is smaller than the region and stands in a window of it;
what it is computed from stands in the same one. A value may be needed in several windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, fx

from fusion_kernels.builder import NotLowered
from fusion_kernels.ir import Window
from planner.graph.view import op_name

CAT = "aten.cat.default"

Windows = Mapping[fx.Node, Sequence[Window | None]]


def windows_of(nodes: Sequence[fx.Node]) -> dict[fx.Node, list[Window | None]]:
    """For each node (in graph order) the windows it is needed in, None for the whole region.

    Raises `NotLowered` where pieces lie within pieces along another dimension.
    """
    inside = set(nodes)
    found: dict[fx.Node, dict[Window | None, None]] = {node: {} for node in nodes}
    for node in reversed(nodes):
        if any(user not in inside for user in node.users) or not found[node]:
            found[node][None] = None
        for window in found[node]:
            for source, own in operand_windows(node, window):
                if source in inside:
                    found[source][own] = None
    return {node: list(windows) for node, windows in found.items()}


def operand_windows(node: fx.Node, window: Window | None) -> list[tuple[fx.Node, Window | None]]:
    """The node's operands, each with the window that it is read in where the node stands in
    `window`. What is the same all along a window stands in none.
    """
    if op_name(node) == CAT:
        return _pieces(node, window)
    return [(source, _own(source, window)) for source in node.all_input_nodes]


def _own(source: fx.Node, window: Window | None) -> Window | None:
    value = source.meta.get("val")
    if window is None or not isinstance(value, Tensor) or value.dim() < -window.dim:
        return None
    return window if value.shape[window.dim] != 1 else None


def _pieces(node: fx.Node, window: Window | None) -> list[tuple[fx.Node, Window | None]]:
    pieces: Any = node.args[0]
    rank = len(node.meta["val"].shape)
    given: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    dim = given % rank - rank
    if window is not None and window.dim != dim:
        raise NotLowered("a concatenation within one along another dimension")
    start = window.start if window is not None else 0
    placed: list[tuple[fx.Node, Window | None]] = []
    for piece in pieces:
        value = piece.meta["val"]
        if value.dim() != rank or not isinstance(value.shape[dim], int):
            raise NotLowered("a piece of another rank, or of a size known only at run time")
        stop = start + value.shape[dim]
        placed.append((piece, Window(dim, start, stop)))
        start = stop
    return placed
