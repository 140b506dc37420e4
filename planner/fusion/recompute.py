"""Lets regions compute a cheap producer again instead of reading what it stored.

A cast, a comparison or a sum with few operations may be read by several kernels, each of which
reads less when it reads what the producer reads: a mask in booleans instead of floats, a tensor in
16 bits instead of 32. Where all readers do so, nothing is stored and one launch is saved. The
copies are nodes of the graph like any other, one for each region that takes one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from torch import fx

from planner.fusion.dimensions import VIEWS
from planner.graph.view import op_name
from planner.passes.common_subexpressions import may_write
from planner.passes.linear_bias import SPLIT

COPY = "recomputed"
"""Meta key of a copy: the name of the node that it computes again."""

Time = Callable[[Sequence[fx.Node]], float | None]
"""Predicted microseconds of nodes (in graph order) as one kernel, None where they cannot be."""

_TWO_FORMS = ("add", "sub", "mul", "div", "rsub", "eq", "ne", "lt", "le", "gt", "ge")
_ONE_FORM = (
    *("_to_copy.default", "to.dtype", "type_as.default", "neg.default", "abs.default"),
    *("relu.default", "clamp.default", "clamp_min.default", "clamp_max.default"),
    *("maximum.default", "minimum.default", "logical_not.default", "logical_and.default"),
    *("logical_or.default", "bitwise_not.default", "bitwise_and.Tensor", "bitwise_or.Tensor"),
    *("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar"),
    *("masked_fill.Scalar", "masked_fill.Tensor"),
)
_CHEAP = frozenset(
    (
        *(f"aten.{name}.{form}" for name in _TWO_FORMS for form in ("Tensor", "Scalar")),
        *(f"aten.{name}" for name in _ONE_FORM),
        "prims.convert_element_type.default",
    )
)
"""An operation or two an element. None of them draws numbers or writes into what it reads."""
_DEEPEST = 3
"""Producers in a row that are computed again."""
_LEAST_US = 0.05
"""A gain below this is within what the prediction rounds away."""


def recompute_cheap(
    graph: fx.Graph,
    regions: Sequence[Sequence[fx.Node]],
    kernel_us: Time,
    operators_us: Callable[[Iterable[fx.Node]], float],
) -> int:
    """Give the regions their own copies of producers wherever the predicted time falls; returns
    how many copies there are.

    Where nothing reads the producer afterwards, the first copy takes its place. Values stay what
    they were, but for the rounding that a stored one had undergone; a copy has its producer's
    dtype.
    """
    held = {n: list(nodes) for n, nodes in enumerate(regions)}
    owner = {node: n for n, nodes in held.items() for node in nodes}
    writers = [node for node in graph.nodes if node.op == "call_function" and may_write(node)]
    count = 0
    for node in reversed(list(graph.nodes)):
        takers = list(dict.fromkeys(owner[u] for u in node.users if u in owner))
        takers = [n for n in takers if n != owner.get(node) and not _after_write(held[n], writers)]
        if not takers or not _is_cheap(node):
            continue
        trials = [(takers, depth) for depth in range(1, _DEEPEST + 1)]
        trials += [([n], depth) for n in takers for depth in range(1, _DEEPEST + 1)]
        best, found = _LEAST_US, None
        for several, depth in trials if len(takers) > 1 else trials[:_DEEPEST]:
            attempt = _Attempt(graph, held, owner)
            gain = attempt.gain_us(node, several, depth, kernel_us, operators_us)
            attempt.undo()
            if gain > best:
                best, found = gain, (several, depth)
        if found:
            attempt = _Attempt(graph, held, owner)
            attempt.copy(node, *found)
            count += attempt.settle()
    return count


def merge_copies(graph: fx.Graph) -> int:
    """Compute once what no kernel took: copies left in the graph give way to their original or to
    the first of them; returns how many went.
    """
    first = {node.name: node for node in graph.nodes if COPY not in node.meta}
    count = 0
    for node in list(graph.nodes):
        if COPY not in node.meta or node.op != "call_function":
            continue
        other = first.setdefault(node.meta[COPY], node)
        if other is not node and _same(other, node):
            node.replace_all_uses_with(other)
            graph.erase_node(node)
            count += 1
    return count


def _is_cheap(node: fx.Node) -> bool:
    """An operation or two an element, or none. Where a linear's bias is added is decided by other
    means.
    """
    return op_name(node) in _CHEAP | VIEWS and SPLIT not in node.meta


def _after_write(nodes: Sequence[fx.Node], writers: Sequence[fx.Node]) -> bool:
    """Whether something may have written into what a copy would read by then."""
    return any(writer < nodes[-1] for writer in writers)


def _same(first: fx.Node, second: fx.Node) -> bool:
    called = (first.target, first.args, first.kwargs) == (second.target, second.args, second.kwargs)
    return called and first < second


class _Attempt:
    """Copies put into the graph on trial."""

    def __init__(
        self, graph: fx.Graph, held: dict[int, list[fx.Node]], owner: dict[fx.Node, int]
    ) -> None:
        self._graph, self._held, self._owner = graph, held, owner
        self._copies: list[tuple[fx.Node, fx.Node, int]] = []
        self._given: dict[tuple[fx.Node, int], fx.Node] = {}
        self._cone: dict[fx.Node, None] = {}

    def gain_us(
        self,
        node: fx.Node,
        takers: Sequence[int],
        depth: int,
        kernel_us: Time,
        operators_us: Callable[[Iterable[fx.Node]], float],
    ) -> float:
        """Predicted time without the copies less that with them; below zero where a kernel cannot
        hold them.
        """
        touched = self._touched(node, takers, depth)
        before = self._time(touched, self._cone, {}, kernel_us, operators_us)
        self.copy(node, takers, depth)
        extra: dict[int, list[fx.Node]] = {}
        for _, copy, taker in self._copies:
            extra.setdefault(taker, []).append(copy)
        after = self._time(touched, self._cone, extra, kernel_us, operators_us)
        return -1.0 if before is None or after is None else before - after

    def copy(self, node: fx.Node, takers: Sequence[int], depth: int) -> None:
        """Put copies into the graph, each after its original, and let the takers read them."""
        for taker in takers:
            for original in reversed(self._producers(node, taker, depth)):
                with self._graph.inserting_after(original):
                    copy = self._graph.node_copy(original, lambda source: source)
                copy.meta = {**original.meta, COPY: original.meta.get(COPY, original.name)}
                self._copies.append((original, copy, taker))
                self._given[original, taker] = copy
            mine = {c for _, c, t in self._copies if t == taker}
            readers = mine.union(self._held[taker])
            for original, copy, of in self._copies:
                if of == taker:
                    _redirect(original, copy, readers)

    def undo(self) -> None:
        """The graph as it was."""
        for original, copy, _ in self._copies:
            copy.replace_all_uses_with(original)
        for _, copy, _ in reversed(self._copies):
            self._graph.erase_node(copy)
        self._copies.clear()

    def settle(self) -> int:
        """Keep the copies, in their regions from now on; erase what nothing reads any more."""
        for _, copy, taker in self._copies:
            self._held[taker] = sorted([*self._held[taker], copy])
            self._owner[copy] = taker
        for original in dict.fromkeys(original for original, _, _ in reversed(self._copies)):
            if not original.users:
                self._replace(original)
        return len(self._copies)

    def _replace(self, original: fx.Node) -> None:
        """Nothing reads it any more: the first copy is the original from now on."""
        if original in self._owner:
            self._held[self._owner.pop(original)].remove(original)
        self._graph.erase_node(original)
        first = next(copy for source, copy, _ in self._copies if source is original)
        first.name = original.name
        first.meta = dict(original.meta)

    def _producers(self, node: fx.Node, taker: int, depth: int) -> list[fx.Node]:
        """The node and the cheap ones before it that the taker does not hold, last first."""
        found = {node: None}
        layer = [node]
        for _ in range(depth - 1):
            layer = [
                source
                for member in layer
                for source in member.all_input_nodes
                if _is_cheap(source) and self._owner.get(source) != taker
            ]
            found |= dict.fromkeys(layer)
        return sorted(found, reverse=True)

    def _touched(self, node: fx.Node, takers: Sequence[int], depth: int) -> list[int]:
        """The regions whose kernels change."""
        for taker in takers:
            self._cone |= dict.fromkeys(self._producers(node, taker, depth))
        owners = [self._owner[member] for member in self._cone if member in self._owner]
        return list(dict.fromkeys((*takers, *owners)))

    def _time(
        self,
        touched: Sequence[int],
        cone: Iterable[fx.Node],
        extra: Mapping[int, Sequence[fx.Node]],
        kernel_us: Time,
        operators_us: Callable[[Iterable[fx.Node]], float],
    ) -> float | None:
        """The kernels of the regions touched, and what of the cone runs by itself."""
        total = operators_us(n for n in cone if n.users and n not in self._owner)
        for region in touched:
            nodes = [n for n in (*self._held[region], *extra.get(region, ())) if n.users]
            time = kernel_us(sorted(nodes))
            if time is None:
                return None
            total += time
        return total


def _redirect(original: fx.Node, copy: fx.Node, readers: set[fx.Node]) -> None:
    original.replace_all_uses_with(
        copy, delete_user_cb=lambda user: user in readers and user is not copy
    )
