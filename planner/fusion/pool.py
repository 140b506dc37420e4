"""The regions worth choosing from: grown in several orders, matches alone, parts, and boundaries
moved.

Growing is greedy, so one order puts a border where another does not. What several orders find
overlaps; so do the parts that a region falls into at its narrow places, and what two neighbours
become when the nodes at their border change sides. `planner.fusion.choice` then chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import networkx as nx
import torch

from planner.fusion.growth import Edge, Growth, grow
from planner.fusion.prices import Prices
from planner.fusion.reach import Reach, positions, union

_MOST_SPLITS = 12
"""Narrow places of one region that are tried."""


def first_growth(reach: Reach, fusable: int, matches: Sequence[int], prices: Prices) -> Growth:
    """Regions grown in graph order, each match in a region of its own."""
    return grow(reach, fusable, matches, _edges(reach), _possible(prices), join_seeds=False)


def grown_otherwise(
    reach: Reach, fusable: int, matches: Sequence[int], prices: Prices
) -> list[int]:
    """Regions grown along the largest values first, from the end of the graph, and both ways
    without regard for matches.
    """
    forward = _edges(reach)
    heaviest = sorted(forward, key=lambda edge: (-_bytes(reach, edge[0]), edge))
    found: list[int] = []
    for edges in (heaviest, forward[::-1]):
        for seeds in (matches, ()):
            growth = grow(reach, fusable, seeds, edges, _possible(prices), join_seeds=True)
            found += growth.regions
    return found


def parts(reach: Reach, region: int) -> list[int]:
    """What the region falls into where it is cut at a node that alone joins two sides of it:
    after the node and what it needs, and before the node and what needs it.
    """
    found: list[int] = []
    for node in _narrow(reach, region)[:_MOST_SPLITS]:
        needed = region & (reach.earlier[node] | 1 << node)
        needing = region & (reach.later[node] | 1 << node)
        for side in (needed, needing):
            found += connected(reach, side)
            found += connected(reach, region & ~side)
    return [part for part in dict.fromkeys(found) if part != region]


def moved(reach: Reach, chosen: Sequence[int], fusable: int) -> list[int]:
    """Two neighbours as one, and each with what it takes from the other at their border; what
    is in no region may join one.
    """
    free = fusable & ~sum(chosen)
    found: list[int] = []
    for region in chosen:
        around = union(reach.after, region) | union(reach.before, region)
        found += [region | 1 << n for n in positions(around & free)]
    for first, second in _neighbours(reach, chosen):
        found.append(first | second)
        for n in positions(first & union(reach.before, second)):
            side = first & (reach.later[n] | 1 << n)
            found += [second | side, *connected(reach, first & ~side)]
        for n in positions(second & union(reach.after, first)):
            side = second & (reach.earlier[n] | 1 << n)
            found += [first | side, *connected(reach, second & ~side)]
    return list(dict.fromkeys(found))


def connected(reach: Reach, bits: int) -> list[int]:
    """The set's connected pieces, edges taken both ways."""
    pieces = []
    while bits:
        piece = frontier = bits & -bits
        while frontier:
            around = union(reach.after, frontier) | union(reach.before, frontier)
            frontier = around & bits & ~piece
            piece |= frontier
        pieces.append(piece)
        bits &= ~piece
    return pieces


def _possible(prices: Prices) -> Callable[[int], bool]:
    return lambda bits: prices.saving_us(bits) is not None


def _edges(reach: Reach) -> list[Edge]:
    """Every node with each that it reads, in graph order."""
    return [
        (reach.index[source], n)
        for n, node in enumerate(reach.nodes)
        for source in node.all_input_nodes
    ]


def _neighbours(reach: Reach, chosen: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Pairs of regions of which the second reads from the first."""
    owner = {n: region for region in chosen for n in positions(region)}
    pairs: dict[tuple[int, int], None] = {}
    for region in chosen:
        for n in positions(union(reach.after, region) & ~region):
            if n in owner:
                pairs[region, owner[n]] = None
    return pairs


def _narrow(reach: Reach, region: int) -> list[int]:
    """The nodes without which the region would fall apart, in graph order."""
    graph: nx.Graph[int] = nx.Graph()
    for n in positions(region):
        graph.add_edges_from((n, m) for m in positions(reach.after[n] & region))
    return sorted(nx.articulation_points(graph))


def _bytes(reach: Reach, n: int) -> int:
    value = reach.nodes[n].meta.get("val")
    if not isinstance(value, torch.Tensor) or not isinstance(value.numel(), int):
        return 0
    return value.numel() * value.element_size()
