"""Grows fusable regions: named matches first, then whatever a kernel can hold, each convex.

Regions are the vertices of a quotient graph that stays acyclic: two neighbours merge only when no
other path leads from one to the other, so that every region can run as one call. Operators that
draw random numbers follow one another in it, so that none changes places with the next.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx
from torch import fx

from fusion_kernels.builder import NotLowered
from fusion_kernels.emit.config import candidates
from fusion_kernels.emit.layout import NotEmitted, layout_of
from fusion_kernels.lowering import LOWERINGS
from fusion_kernels.reductions import REDUCTIONS
from fusion_kernels.rule import Match, Mismatch
from planner.fusion.dimensions import CAT, STACK
from planner.fusion.dtypes import refused_dtype
from planner.fusion.lower import Hint, bound_hint, is_view, lower, without_last_views
from planner.fusion.lowered import LoweredRegion
from planner.graph.randomness import drawing_nodes
from planner.graph.view import op_name

POINTWISE_CHAIN, ROW_CHAIN = "pointwise_chain", "row_chain"
"""What the automatic regions are called: those without and those with a reduction."""
_FUSABLE = frozenset((*LOWERINGS, CAT, STACK))
_WORTH_ALONE = frozenset(name for name in REDUCTIONS if "norm." in name or "softmax" in name)
"""Operators for which eager passes over a row several times, or slowly once."""
_MOST_INPUTS = 16


@dataclass(frozen=True, slots=True)
class RegionPlan:
    """A region that can be fused: which rule asked for it, and its lowered form."""

    rule: str
    lowered: LoweredRegion
    match: Match | None


def find_regions(
    graph: fx.Graph, matches: Sequence[Match], hint: Hint
) -> tuple[tuple[RegionPlan, ...], tuple[Mismatch, ...]]:
    """Disjoint convex regions covering the matches, every chain of two or more pointwise
    operators, reductions and concatenations, and single norms and softmaxes.

    What stays alone, and every merge refused, is returned with its reason.
    """
    growth = _Growth(graph, hint)
    rejected: list[Mismatch] = []
    for match in matches:
        reason = growth.seed(match)
        if reason:
            rejected.append(Mismatch(match.rule, "check", reason, match.root.name))
    for node in graph.nodes:
        if node in growth.group_of:
            continue
        reason = refused_dtype(node) if op_name(node) in _FUSABLE else ""
        if reason:
            rejected.append(Mismatch(POINTWISE_CHAIN, "check", reason, node.name))
        elif op_name(node) in _FUSABLE or (is_view(node) and node.args[0] in growth.group_of):
            growth.single(node)
    for node in graph.nodes:
        for source in node.all_input_nodes:
            reason = growth.merge(source, node)
            if reason:
                rejected.append(Mismatch(POINTWISE_CHAIN, "check", reason, node.name))
    plans, alone = growth.finish()
    return plans, (*rejected, *alone)


class _Growth:
    """The regions so far and the quotient graph they form."""

    def __init__(self, graph: fx.Graph, hint: Hint) -> None:
        self._hint = hint
        self._order = {node: index for index, node in enumerate(graph.nodes)}
        self._quotient: nx.DiGraph[int] = nx.DiGraph()
        self._members: dict[int, list[fx.Node]] = {}
        self._match: dict[int, Match] = {}
        self.group_of: dict[fx.Node, int] = {}
        for node, index in self._order.items():
            self._quotient.add_node(index)
            self._quotient.add_edges_from(
                (self._order[source], index) for source in node.all_input_nodes
            )
        draws = (self._order[node] for node in drawing_nodes(graph))
        self._quotient.add_edges_from(itertools.pairwise(draws))

    def single(self, node: fx.Node) -> None:
        """Make `node` a region of its own that others may join."""
        self._members[self._order[node]] = [node]
        self.group_of[node] = self._order[node]

    def seed(self, match: Match) -> str | None:
        """Make the matched nodes one region; the reason when they cannot be."""
        reason = self._refusal(match.nodes, match.variant)
        if reason:
            return reason
        if not self._all_convex({self._order[node] for node in match.nodes}):
            return "not convex: a path leaves the region and comes back"
        for node in match.nodes:
            self.single(node)
        for node in match.nodes[:-1]:
            self._contract(self.group_of[node], self.group_of[match.root])
        self._match[self.group_of[match.root]] = match
        return None

    def merge(self, source: fx.Node, node: fx.Node) -> str | None:
        """Join the regions of two neighbours; the reason when both are regions and may not
        join.
        """
        first, second = self.group_of.get(source), self.group_of.get(node)
        if first is None or second is None or first == second:
            return None
        if first in self._match and second in self._match:
            return None
        if not self._convex(first, second):
            return f"not convex with {source.name}: a path leaves the region and comes back"
        union = sorted(self._members[first] + self._members[second], key=self._order.__getitem__)
        reason = self._refusal(union, POINTWISE_CHAIN)
        if reason:
            return f"not joined with {source.name}: {reason}"
        self._contract(first, second)
        return None

    def finish(self) -> tuple[tuple[RegionPlan, ...], tuple[Mismatch, ...]]:
        """The regions of two or more operators in graph order, and those that stayed alone."""
        plans: list[RegionPlan] = []
        alone: list[Mismatch] = []
        for group, held in sorted(self._members.items()):
            match = self._match.get(group)
            members = without_last_views(held)
            if not members:
                continue
            if len(members) == 1 and match is None:
                reason = self._lonely(members[0])
                if reason:
                    alone.append(Mismatch(POINTWISE_CHAIN, "pattern", reason, members[0].name))
                    continue
            name = match.variant if match else chain_name(members)
            lowered = lower(members, name, bound_hint(match, self._hint))
            automatic = ROW_CHAIN if lowered.region.row_rank else POINTWISE_CHAIN
            plans.append(RegionPlan(match.rule if match else automatic, lowered, match))
        plans.sort(key=lambda plan: self._order[plan.lowered.nodes[-1]])
        return tuple(plans), tuple(alone)

    def _lonely(self, node: fx.Node) -> str | None:
        """Why a single operator is left to eager."""
        if op_name(node) in _WORTH_ALONE:
            return self._refusal([node], POINTWISE_CHAIN)
        neighbours = (*node.all_input_nodes, *node.users)
        around = [op_name(n) for n in neighbours if n.op == "call_function"]
        named = ", ".join(dict.fromkeys(around)) or "inputs and outputs"
        return f"single operator: it joins none of its neighbours ({named})"

    def _refusal(self, nodes: Sequence[fx.Node], name: str) -> str | None:
        try:
            lowered = lower(nodes, name, self._hint)
            region = lowered.region
            candidates(region, layout_of(region))
        except (NotLowered, NotEmitted, RuntimeError) as error:
            return str(error)
        if len(region.inputs) > _MOST_INPUTS:
            return f"it would read {len(region.inputs)} tensors, more than {_MOST_INPUTS}"
        if not region.inputs:
            return "it reads no tensor"
        devices = {str(node.meta["val"].device) for node in (*lowered.inputs, *nodes)}
        return f"it spans devices {sorted(devices)}" if len(devices) > 1 else None

    def _convex(self, first: int, second: int) -> bool:
        """Whether the only paths from `first` to `second`, or back, are direct edges."""
        for start, end in ((first, second), (second, first)):
            for successor in self._quotient.successors(start):
                if successor != end and nx.has_path(self._quotient, successor, end):
                    return False
        return True

    def _all_convex(self, groups: set[int]) -> bool:
        """Whether no path leaves `groups` and comes back."""
        left = {after for group in groups for after in self._quotient.successors(group)} - groups
        layers = nx.bfs_layers(self._quotient, left)
        return all(groups.isdisjoint(layer) for layer in layers)

    def _contract(self, absorbed: int, into: int) -> None:
        for before in list(self._quotient.predecessors(absorbed)):
            if before != into:
                self._quotient.add_edge(before, into)
        for after in list(self._quotient.successors(absorbed)):
            if after != into:
                self._quotient.add_edge(into, after)
        self._quotient.remove_node(absorbed)
        members = self._members.pop(absorbed) + self._members[into]
        self._members[into] = sorted(members, key=self._order.__getitem__)
        for node in members:
            self.group_of[node] = into
        if absorbed in self._match:
            self._match[into] = self._match.pop(absorbed)


def chain_name(nodes: Sequence[fx.Node]) -> str:
    """Operator names in order, shortened: add_mul_tanh, or add_mul_and_6_more."""
    names = [op_name(node).split(".")[1].strip("_") for node in nodes]
    shown = "_".join(names[:3])
    return shown if len(names) <= 3 else f"{shown}_and_{len(names) - 3}_more"
