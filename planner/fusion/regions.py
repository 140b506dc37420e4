"""Finds the regions of a graph: what named rules match and whatever else a kernel can hold, chosen
so that together they save the most predicted time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from torch import fx

from fusion_kernels.builder import NotLowered
from fusion_kernels.emit.config import candidates
from fusion_kernels.emit.layout import NotEmitted, layout_of
from fusion_kernels.lowering import LOWERINGS
from fusion_kernels.reductions import REDUCTIONS
from fusion_kernels.rule import Match, Mismatch
from planner.cost.devices import Device
from planner.fusion.dimensions import CAT, STACK, VIEWS
from planner.fusion.dtypes import refused_dtype
from planner.fusion.growth import Refusal
from planner.fusion.lookups import LOOKUPS
from planner.fusion.lower import Hint, bound_hint, is_view, lower
from planner.fusion.lowered import LoweredRegion
from planner.fusion.prices import kernel_time
from planner.fusion.recompute import recompute_cheap
from planner.fusion.survey import Survey
from planner.fusion.weights import Rates, operators_us, rates_of, turns_layout
from planner.graph.view import op_name

POINTWISE_CHAIN, ROW_CHAIN = "pointwise_chain", "row_chain"
"""What the automatic regions are called: those without and those with a reduction."""
_FUSABLE = frozenset((*LOWERINGS, *LOOKUPS, CAT, STACK)) - VIEWS
_WORTH_ALONE = frozenset(name for name in REDUCTIONS if "norm." in name or "softmax" in name)
"""Operators for which eager passes over a row several times, or slowly once."""
_MOST_INPUTS = 16
_ASSUMED = rates_of(Device("unknown", "", (), {}), "cpu")
_NOT_CONVEX = "a path leaves the region and comes back"
_MOST_NAMES = 3


@dataclass(frozen=True, slots=True)
class RegionPlan:
    """A region that can be fused: which rules asked for it, its lowered form, and the matches that
    it holds, in graph order.
    """

    rule: str
    lowered: LoweredRegion
    matches: tuple[Match, ...]


def find_regions(
    graph: fx.Graph, matches: Sequence[Match], hint: Hint, rates: Rates = _ASSUMED
) -> tuple[tuple[RegionPlan, ...], tuple[Mismatch, ...]]:
    """Disjoint convex regions that together save the most predicted time, of those that hold
    matches, chains of two or more pointwise operators, reductions and concatenations, and single
    norms and softmaxes.

    What stays alone, and every merge refused, is returned with its reason.
    """
    survey = survey_of(graph, matches, hint, rates)
    chosen = survey.choose()
    plans = plans_of(survey, chosen, hint)
    return plans, refusals(survey, chosen)


def survey_of(
    graph: fx.Graph, matches: Sequence[Match], hint: Hint, rates: Rates = _ASSUMED
) -> Survey:
    """Every region worth considering, with its predicted saving."""
    fusable: dict[fx.Node, None] = {}
    for node in graph.nodes:
        known = op_name(node) in _FUSABLE and not refused_dtype(node)
        if known or (is_view(node) and node.args[0] in fusable):
            fusable[node] = None
    alone = [
        node
        for node in fusable
        if op_name(node) in _WORTH_ALONE or (rates.on_gpu and turns_layout(node))
    ]
    return Survey(
        graph, fusable, alone, matches, rates, lambda nodes: _lowered(nodes, POINTWISE_CHAIN, hint)
    )


def recomputed(graph: fx.Graph, chosen: Sequence[Sequence[fx.Node]], rates: Rates) -> int:
    """Put copies of cheap producers into the graph where the chosen regions are faster with them
    by prediction; returns how many.
    """
    return recompute_cheap(
        graph,
        chosen,
        kernel_time(rates, lambda nodes: _lowered(nodes, POINTWISE_CHAIN, lambda n: n.name)),
        lambda nodes: operators_us(nodes, rates),
    )


def plans_of(survey: Survey, chosen: Sequence[int], hint: Hint) -> tuple[RegionPlan, ...]:
    """The chosen sets of nodes as regions, in the order in which they end."""
    ordered = sorted(chosen, key=int.bit_length)
    return tuple(_plan(survey, bits, hint) for bits in ordered)


def refusals(
    survey: Survey, chosen: Sequence[int], tried: Collection[int] = ()
) -> tuple[Mismatch, ...]:
    """Why matches were not taken, why neighbours are apart, and why operators are left alone that
    are in none of the regions `tried`.
    """
    found = [
        Mismatch(POINTWISE_CHAIN, "check", refused_dtype(node), node.name)
        for node in survey.reach.nodes
        if op_name(node) in _FUSABLE and refused_dtype(node)
    ]
    for refusal in survey.growth.seeds:
        match = survey.match_of(refusal.nodes)
        said = _said(survey, refusal)
        reason = said if refusal.union else f"not convex: {said}"
        found.append(Mismatch(match.rule, "check", reason, match.root.name))
    for refusal in survey.growth.merges:
        source, node = (survey.reach.nodes[n] for n in refusal.nodes)
        both = survey.reach.bits((source, node))
        if not any(bits & both == both for bits in chosen):
            start = "not joined with" if refusal.union else "not convex with"
            reason = f"{start} {source.name}: {_said(survey, refusal)}"
            found.append(Mismatch(POINTWISE_CHAIN, "check", reason, node.name))
    inside = reduce(or_, (*chosen, *tried), 0)
    alone = survey.reach.members(survey.fusable & ~inside)
    left = (
        Mismatch(POINTWISE_CHAIN, "pattern", _lonely(survey, node), node.name)
        for node in alone
        if not is_view(node)
    )
    return (*found, *left)


def _plan(survey: Survey, bits: int, hint: Hint) -> RegionPlan:
    nodes, matches = survey.reach.members(bits), survey.matches_in(bits)
    lowered = lower(nodes, _name(nodes, matches), bound_hint(matches, hint))
    automatic = ROW_CHAIN if lowered.region.row_rank else POINTWISE_CHAIN
    rules = "+".join(dict.fromkeys(match.rule for match in matches))
    return RegionPlan(rules or automatic, lowered, matches)


def _name(nodes: Sequence[fx.Node], matches: Sequence[Match]) -> str:
    names = [match.variant for match in matches]
    if not names:
        return chain_name(nodes)
    shown = "_".join(names[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return shown if more <= 0 else f"{shown}_and_{more}_more"


def _said(survey: Survey, refusal: Refusal) -> str:
    if not refusal.union:
        return _NOT_CONVEX
    return survey.prices.reason(refusal.union) or "it cannot be one kernel"


def _lonely(survey: Survey, node: fx.Node) -> str:
    """Why an operator is left to eager."""
    bits = survey.reach.bits((node,))
    region = next(bits_of for bits_of in survey.growth.regions if bits_of & bits)
    if any(n is not node and not is_view(n) for n in survey.reach.members(region)):
        saves = (survey.prices.saving_us(region) or 0.0) > 0
        beside = "a region with it saves less than those chosen beside it"
        return beside if saves else "no time is predicted to be saved by one kernel with it"
    reason = survey.prices.reason(bits) if op_name(node) in _WORTH_ALONE else None
    if reason:
        return reason
    neighbours = (*node.all_input_nodes, *node.users)
    around = [op_name(n) for n in neighbours if n.op == "call_function"]
    named = ", ".join(dict.fromkeys(around)) or "inputs and outputs"
    return f"single operator: it joins none of its neighbours ({named})"


def _lowered(nodes: Sequence[fx.Node], name: str, hint: Hint) -> LoweredRegion | str:
    """The nodes as a region, or why no kernel can hold them."""
    try:
        lowered = lower(nodes, name, hint)
        region = lowered.region
        candidates(region, layout_of(region))
    except (NotLowered, NotEmitted, RuntimeError) as error:
        return str(error)
    if len(region.inputs) > _MOST_INPUTS:
        return f"it would read {len(region.inputs)} tensors, more than {_MOST_INPUTS}"
    if not region.inputs:
        return "it reads no tensor"
    devices = {str(node.meta["val"].device) for node in (*lowered.inputs, *nodes)}
    return f"it spans devices {sorted(devices)}" if len(devices) > 1 else lowered


def chain_name(nodes: Sequence[fx.Node]) -> str:
    """Operator names in order, shortened: add_mul_tanh, or add_mul_and_6_more."""
    names = [op_name(node).split(".")[1].strip("_") for node in nodes]
    shown = "_".join(names[:3])
    return shown if len(names) <= 3 else f"{shown}_and_{len(names) - 3}_more"
