"""How much of the eager forward's time outside products, convolutions and attention the fused
program took into kernels or rewrote away, and what it left, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from planner.cost.families import MATRIX, UNINITIALIZED, VIEW, is_work, packet
from planner.fusion.plan import FusionPlan
from planner.graph.op_graph import OpGraph, OpNode
from planner.profile.model import Profile, UnlinkedRow
from planner.report.model import FusableTime, LeftRow

_ADDED = "a rewrite put it in; it was not there to be timed"
_ALL = 1.0 - 1e-9
"""The share at which nothing is left of an operator; shares are sums of fractions."""
_ORIGINAL = "the original module is returned"


def fusable_time(
    profile: Profile | None, graph: OpGraph, rewritten: OpGraph | None, plan: FusionPlan
) -> FusableTime | None:
    """The measured time of `graph`'s operators by what became of them; None without a profile.

    `graph` is the captured program, `rewritten` what it was before `plan` took its regions, None
    where the original is returned. A node's time is its row's, divided evenly among the row's
    calls. Work of eager that no node stands for is in the total, and counts as rewritten where it
    stands for what the capture has folded or dropped. An operator that was taken apart is in
    kernels by the share of the bytes of its parts that are.
    """
    if profile is None:
        return None
    node_us = _by_node(profile)
    rest = [node for node in graph if node.name in node_us and not _is_product(node.op)]
    held = {name for fusion in plan.chosen for name in fusion.candidate.nodes}
    went = (fusion for fusion in plan.fusions if fusion.judged.kept and not fusion.kept)
    won = {name for fusion in went for name in _and_composites(fusion.candidate.nodes, plan)}
    taken = _taken_shares(held, plan)
    left_us = {name: us * (1.0 - min(taken.get(name, 0.0), 1.0)) for name, us in node_us.items()}
    library = {node.name for item in plan.by_library for node in (item.bias, item.activation)}
    there = {node.name for node in rewritten or graph} - library
    left = [n for n in rest if n.name in there - held and taken.get(n.name, 0.0) < _ALL]
    unlinked_us, removed_us = _total(profile.unlinked), _total(profile.removed)
    total_us = _sum(node_us, rest) + unlinked_us
    removed_us = min(removed_us, unlinked_us) if rewritten is not None else 0.0
    return FusableTime(
        products_us=max(profile.operators_us - total_us, 0.0),
        total_us=total_us,
        in_kernels_us=_sum(node_us, (node for node in rest if node.name in held & there))
        + sum(node_us[node.name] - left_us[node.name] for node in rest if node.name in there),
        rewritten_us=_sum(node_us, (n for n in rest if n.name not in there)) + removed_us,
        withdrawn_us=_sum(left_us, (node for node in left if node.name in won)),
        unlinked_us=unlinked_us - removed_us,
        left=(*_left(left, left_us, plan, rewritten is None), *_added(graph, rewritten, held)),
    )


def _taken_shares(held: Iterable[str], plan: FusionPlan) -> dict[str, float]:
    """How much of each operator that was taken apart is in kernels."""
    shares: dict[str, float] = {}
    for name, share in (plan.parts[part] for part in held if part in plan.parts):
        shares[name] = shares.get(name, 0.0) + share
    return shares


def _and_composites(nodes: Iterable[str], plan: FusionPlan) -> set[str]:
    """The names of the nodes, and of the operators that they are parts of."""
    nodes = set(nodes)
    return nodes.union(plan.parts[node][0] for node in nodes if node in plan.parts)


def _by_node(profile: Profile) -> dict[str, float]:
    return {
        name: row.timing.median_us / row.calls for row in profile.rows for name in row.node_names
    }


def _total(rows: Iterable[UnlinkedRow]) -> float:
    """Names are those of graphs, or of the profiler ("aten::mm")."""
    kept = (row for row in rows if not _is_product(row.name.replace("::", ".")))
    return sum(row.timing.median_us for row in kept)


def _is_product(op: str) -> bool:
    return packet(op) in MATRIX


def _sum(node_us: Mapping[str, float], nodes: Iterable[OpNode]) -> float:
    return sum(node_us[node.name] for node in nodes)


def _left(
    nodes: Iterable[OpNode], node_us: Mapping[str, float], plan: FusionPlan, is_original: bool
) -> list[LeftRow]:
    """One row an operator, the longest first; its reason is that of its longest node. What takes
    no time, as views on a device, is left out.
    """
    reasons = _reasons(plan)
    alike: dict[str, list[OpNode]] = {}
    for node in nodes:
        if node_us[node.name] > 0.0:
            alike.setdefault(packet(node.op), []).append(node)
    rows = []
    for op, members in alike.items():
        longest = max(members, key=lambda node: node_us[node.name])
        unknown = _ORIGINAL if is_original else f"no region holds {longest.op}"
        reason = reasons.get(longest.name, unknown)
        rows.append(LeftRow(op, len(members), _sum(node_us, members), reason, longest.name))
    return sorted(rows, key=lambda row: -(row.us or 0.0))


def _reasons(plan: FusionPlan) -> dict[str, str]:
    """Why a node is in no kernel. What its own region was turned down for says more than why it
    joined no other, and that more than where a named rule stopped.
    """
    found: dict[str, str] = {}
    for item in sorted(plan.rejected, key=lambda item: item.stage == "check"):
        found |= dict.fromkeys(_and_composites([item.node], plan), item.reason)
    for fusion in plan.fusions:
        if not fusion.kept:
            found |= dict.fromkeys(_and_composites(fusion.candidate.nodes, plan), fusion.reason)
    return found


def _added(graph: OpGraph, rewritten: OpGraph | None, held: set[str]) -> list[LeftRow]:
    """What the rewrites put in beside products and views, and no kernel holds."""
    known = {node.name for node in graph} | held
    rows: dict[str, LeftRow] = {}
    for node in rewritten or ():
        op = packet(node.op)
        is_free = op in VIEW | UNINITIALIZED | MATRIX or not is_work(node)
        if node.name not in known and not is_free:
            calls = rows[op].calls + 1 if op in rows else 1
            rows[op] = LeftRow(op, calls, None, _ADDED, node.name)
    return list(rows.values())
