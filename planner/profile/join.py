"""Give every microsecond of one eager forward to exactly one graph node or unlinked name."""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.cost.families import UNINITIALIZED
from planner.graph.op_graph import OpGraph
from planner.profile.pairing import Pairing, is_operator, packet_of
from planner.profile.tree import Call, Iteration

NO_GRAPH = OpGraph(())


@dataclass(frozen=True, slots=True)
class Joined:
    """Times of one forward, microseconds: by graph node, and by name of what no node stands for.
    `removed` is the part of the latter that stands for nodes which the graph has lost, by node.
    """

    by_node: dict[str, float]
    unlinked: dict[str, float]
    removed: dict[str, float] = field(default_factory=dict)


def join(
    iteration: Iteration, graph: OpGraph, *, on_device: bool, removed: OpGraph = NO_GRAPH
) -> Joined:
    """Join one iteration's calls to the graph, and what is left of them to the nodes in `removed`.

    The outermost call that fits a node carries all that ran inside it. A composite operator that
    fits none is opened, and its own time (with its allocations) goes to the longest joined call
    inside, for which it was made. A call without a node is unlinked with all that ran inside it.
    `on_device` counts device work instead of host time.
    """
    pairing = Pairing(iteration.calls, graph)
    ledger = _Ledger(pairing, on_device)
    for root in iteration.calls:
        ledger.book(root)
    for event in iteration.loose:
        ledger.add_unlinked(event.name, event.duration_us)
    second = _Ledger(Pairing(ledger.apart, removed), on_device)
    for call in ledger.apart:
        second.book(call)
    return Joined(ledger.by_node, ledger.unlinked, second.by_node)


class _Ledger:
    """Books the time of calls on graph nodes and on names without a node."""

    def __init__(self, pairing: Pairing, on_device: bool) -> None:
        self.by_node = dict.fromkeys(pairing.taken, 0.0)
        self.unlinked: dict[str, float] = {}
        self.apart: list[Call] = []
        self._pairing = pairing
        self._time_us = _device_us if on_device else _host_us

    def book(self, call: Call) -> str | None:
        """Book a call's time. Returns the joined node inside it that took the longest, if any."""
        node = self._pairing.node_of.get(id(call))
        if node is not None:
            self.by_node[node] += self._time_us(call)
            return node
        operator = is_operator(call)
        if operator and id(call) not in self._pairing.holds_joined:
            self.add_unlinked(call.event.name, self._time_us(call))
            self.apart.append(call)
            return None
        booked = [child for child in call.children if not (operator and self._allocates(child))]
        held = [name for name in map(self.book, booked) if name is not None]
        longest = max(held, key=lambda name: self.by_node[name], default=None)
        if operator and longest is not None:
            own_us = self._time_us(call) - sum(map(self._time_us, booked))
            self.by_node[longest] += max(own_us, 0.0)
        return longest

    def add_unlinked(self, name: str, us: float) -> None:
        self.unlinked[name] = self.unlinked.get(name, 0.0) + us

    def _allocates(self, child: Call) -> bool:
        """An allocation without a node of its own: part of the operator around it."""
        return packet_of(child) in UNINITIALIZED and id(child) not in self._pairing.node_of


def _host_us(call: Call) -> float:
    return call.event.duration_us


def _device_us(call: Call) -> float:
    return sum(inner.device_us for inner in call.walk())
