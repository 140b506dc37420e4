"""Matches named rules against a graph, largest variants first, the best failure kept with its
reason.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from fusion_kernels.rule import FusionRule, Match, Mismatch
from planner.fusion.attempt import Attempt, Unified
from planner.fusion.patterns import spellings_of
from planner.fusion.unify import may_stand_for, unifications

# The share of a pattern's operators that a near miss has: with less, each sum of products is one.
_NEAR = 2 / 3


def match_rules(
    graph: fx.Graph, rules: Sequence[FusionRule]
) -> tuple[tuple[Match, ...], tuple[Mismatch, ...]]:
    """Every place where a rule fits, largest variants first, no node in two matches.

    A place where a rule's last operator stands but none fits yields one Mismatch, with the reason
    and node of the variant that came nearest.
    """
    matches: list[Match] = []
    missed: dict[fx.Node, tuple[FusionRule, Attempt]] = {}
    taken: set[fx.Node] = set()
    for rule in rules:
        for node in reversed(graph.nodes):
            found = _match_at(rule, node, taken)
            if isinstance(found, Match):
                matches.append(found)
                taken.update(found.nodes)
            elif found is not None and (
                node not in missed or found.lacking < missed[node][1].lacking
            ):
                missed[node] = (rule, found)
    order = {node: index for index, node in enumerate(graph.nodes)}
    matches.sort(key=lambda match: order[match.root])
    # What lies in a match, or only reaches beyond one, is no place of its own.
    near = {
        root: item
        for root, item in missed.items()
        if root not in taken and taken.isdisjoint(item[1].reached)
    }
    return tuple(matches), tuple(_mismatch(root, *item) for root, item in near.items())


def _match_at(rule: FusionRule, node: fx.Node, taken: set[fx.Node]) -> Match | Attempt | None:
    """The match that ends in `node`, else the try that came near one."""
    best: Attempt | None = None
    for variant in rule.variants:
        for spelling in spellings_of(variant):
            if not may_stand_for(spelling.root, node):
                continue
            attempt = Attempt(variant, spelling)
            for state in unifications(node, attempt):
                match = Match(rule.name, variant.name, state.nodes, dict(state.bindings))
                reason = _refusal(rule, match, state, taken)
                if reason is None:
                    return match
                attempt.refuse(state, reason, node)
            if best is None or attempt.lacking < best.lacking:
                best = attempt
    if best is None or not best.reason or best.depth < max(2, _NEAR * best.spelling.size):
        return None
    return best


def _refusal(rule: FusionRule, match: Match, state: Unified, taken: set[fx.Node]) -> str | None:
    """The rule's own reason first: an empty one says that the place is nothing to speak of."""
    reason = rule.check(match)
    if reason is not None:
        return reason
    shared = [node.name for node in state.operators.values() if node in taken]
    return f"{shared[0]} belongs to another fusion" if shared else None


def _mismatch(root: fx.Node, rule: FusionRule, attempt: Attempt) -> Mismatch:
    reason = f"{attempt.variant.name}: {attempt.reason}"
    return Mismatch(rule.name, "pattern", reason, attempt.node or root.name)
