"""Which call of an eager forward stands for which graph node.

Both sides are the same program seen twice: by the dispatcher while it ran, and by the capture.
They meet by module path, operator name, shapes, dtypes and order. Differences that a capture
makes (in-place operators made functional, `reshape` resolved to `view`) are named here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from planner.cost.families import packet
from planner.graph.op_graph import OpGraph, OpNode, TensorMeta
from planner.profile.tree import Call

# Eager name -> the name a captured graph may have for the same work.
_ALIASES = {
    "aten.reshape": "aten.view",
    "aten._unsafe_view": "aten.view",
    "aten._reshape_alias": "aten.view",
    "aten.flatten": "aten.view",
    "aten.expand_as": "aten.expand",
    "aten.contiguous": "aten.clone",
    "aten.native_batch_norm": "aten._native_batch_norm_legit_no_training",
    "aten.cudnn_batch_norm": "aten._native_batch_norm_legit_no_training",
    "aten.concat": "aten.cat",
}

_Attempt = Literal["exact", "first_shape", "alias", "any_module", "any_module_alias"]
# The surest first. `first_shape`: the same operator of the same module on other further inputs,
# as when only the capture repeats the key and value heads of grouped attention.
_ATTEMPTS: tuple[_Attempt, ...] = (
    "exact",
    "first_shape",
    "alias",
    "any_module",
    "any_module_alias",
)


class Pairing:
    """Calls joined to nodes; every node is given away once, in execution order.

    `node_of` maps a call's `id` to its node's name, `taken` holds all those names,
    `holds_joined` the ids of calls with a joined call somewhere inside.
    """

    def __init__(self, calls: Sequence[Call], graph: OpGraph) -> None:
        self.node_of: dict[int, str] = {}
        self.taken: set[str] = set()
        self.holds_joined: set[int] = set()
        self._by_module: dict[tuple[str | None, str], list[OpNode]] = {}
        for node in graph:
            name = packet(node.op)
            self._by_module.setdefault((node.module_path, name), []).append(node)
            self._by_module.setdefault((None, name), []).append(node)
        for attempt in _ATTEMPTS:
            for call in calls:
                self._pair(call, attempt)

    def _pair(self, call: Call, attempt: _Attempt) -> bool:
        """Join the call or, if it fits no node, what is inside it. Whether it is joined or holds a
        joined call now.
        """
        number = id(call)
        if number in self.node_of:
            return True
        free = is_operator(call) and number not in self.holds_joined
        alias = attempt in ("alias", "any_module_alias")
        if free and not alias and self._take(call, attempt):
            return True
        if self._opens(call, attempt):
            for child in call.children:
                if self._pair(child, attempt):
                    self.holds_joined.add(number)
        if number in self.holds_joined:
            return True
        # An alias after what is inside: `reshape` may hold the very `clone` that the graph has.
        return free and alias and self._take(call, attempt)

    def _opens(self, call: Call, attempt: _Attempt) -> bool:
        """Whether what is inside a call may stand for nodes: in ranges and composite operators, or
        where an operator calls itself again (autocast, type promotion).

        An operator that the second attempt can still join is left closed in the first.
        """
        if not is_operator(call):
            return True
        if attempt == "exact" and next(self._candidates(call, "first_shape"), None) is not None:
            return False
        name = packet_of(call)
        return call.event.composite or any(packet_of(child) == name for child in call.children)

    def _take(self, call: Call, attempt: _Attempt) -> bool:
        node = next(self._candidates(call, attempt), None)
        if node is None:
            return False
        self.node_of[id(call)] = node.name
        self.taken.add(node.name)
        return True

    def _candidates(self, call: Call, attempt: _Attempt) -> Iterator[OpNode]:
        """Free nodes that the call can stand for, in execution order."""
        name = packet_of(call)
        if attempt in ("alias", "any_module_alias"):
            if name not in _ALIASES:
                return
            name = _ALIASES[name]
        anywhere = attempt in ("any_module", "any_module_alias")
        if call.module_path is None and not anywhere:
            return
        fits = _first_fits if attempt == "first_shape" else _all_fit
        module = None if anywhere else call.module_path
        for node in self._by_module.get((module, name), ()):
            if node.name not in self.taken and fits(call, node):
                yield node


def is_operator(call: Call) -> bool:
    """Whether a call is an operator, not a range."""
    return call.event.kind == "operator"


def packet_of(call: Call) -> str:
    """The operator's name as graphs write it: "aten.add" for "aten::add_"."""
    return packet(call.event.name.replace("::", "."))


def _all_fit(call: Call, node: OpNode) -> bool:
    """Whether shapes and dtypes agree.

    Tensors without dimensions are left out on both sides: a Python number may be one in eager.
    Where the profiler recorded only part of the tensors, those must appear in order.
    """
    event = call.event
    metas = [meta for meta in node.inputs if meta.shape]
    if event.complete and len(metas) != len(event.shapes):
        return False
    remaining = iter(metas)
    return all(
        any(_same(shape, dtype, meta) for meta in remaining)
        for shape, dtype in zip(event.shapes, event.dtypes, strict=True)
    )


def _first_fits(call: Call, node: OpNode) -> bool:
    metas = [meta for meta in node.inputs if meta.shape]
    if not metas or not call.event.shapes:
        return False
    return _same(call.event.shapes[0], call.event.dtypes[0], metas[0])


def _same(shape: tuple[int, ...], dtype: str, meta: TensorMeta) -> bool:
    return shape == meta.shape and dtype in ("", meta.dtype)
