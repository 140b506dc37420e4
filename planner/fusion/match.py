"""Matches named rules against a graph: patterns traced once, the best failure kept with its
reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from fusion_kernels.rule import FusionRule, Match, Mismatch, Variant
from planner.graph.view import CASTS

_COMMUTATIVE = ("aten.add.Tensor", "aten.mul.Tensor")
# Arguments that pick an implementation and leave the result alone.
_IGNORED = ("cudnn_enable",)


@dataclass(slots=True)
class _Attempt:
    """One try at one place: what is bound so far, and how far it came before it failed.

    `size` counts the pattern's operators, `fitting` the arguments that fit so far. `depth` and
    `fitted` are both counts (operators, arguments) where the reason was found.
    """

    variant: Variant
    size: int
    bindings: dict[str, Any] = field(default_factory=dict)
    nodes: dict[fx.Node, fx.Node] = field(default_factory=dict)
    fitting: int = 0
    depth: int = -1
    fitted: int = 0
    reason: str = ""
    node: str = ""

    def fail(self, reason: str, node: Any) -> bool:
        if (len(self.nodes), self.fitting) > (self.depth, self.fitted):
            self.depth, self.fitted, self.reason = len(self.nodes), self.fitting, reason
            self.node = node.name if isinstance(node, fx.Node) else ""
        return False

    @property
    def lacking(self) -> tuple[int, int]:
        """Small for the try that was nearest to a match: the operators it missed come first."""
        return self.size - self.depth, -self.fitted


def match_rules(
    graph: fx.Graph, rules: Sequence[FusionRule]
) -> tuple[tuple[Match, ...], tuple[Mismatch, ...]]:
    """Every place where a rule fits, largest variants first, no node in two matches.

    A place where a rule's root operator stands but no variant fits yields one Mismatch, with the
    reason and node of the variant that came furthest.
    """
    matches: list[Match] = []
    mismatches: list[tuple[fx.Node, Mismatch]] = []
    taken: set[fx.Node] = set()
    for rule in rules:
        for node in reversed(graph.nodes):
            found = _match_at(rule, node, taken)
            if isinstance(found, Match):
                matches.append(found)
                taken.update(found.nodes)
            elif found is not None:
                mismatches.append((node, found))
    order = {node: index for index, node in enumerate(graph.nodes)}
    matches.sort(key=lambda match: order[match.root])
    return tuple(matches), tuple(item for root, item in mismatches if root not in taken)


def _match_at(rule: FusionRule, node: fx.Node, taken: set[fx.Node]) -> Match | Mismatch | None:
    best: _Attempt | None = None
    for variant in rule.variants:
        root = _root(_traced(variant))
        if node.op != "call_function" or node.target != root.target:
            continue
        attempt = _Attempt(variant, sum(n.op == "call_function" for n in root.graph.nodes))
        if _unify(root, node, node, attempt):
            rejected = _accept(rule, attempt, taken)
            if rejected is None:
                return _as_match(rule, attempt)
            attempt.reason, attempt.node = rejected, node.name
            attempt.depth, attempt.fitted = attempt.size, attempt.fitting
        if best is None or attempt.lacking < best.lacking:
            best = attempt
    if best is None or best.depth < max(2, best.size / 2):
        return None
    return Mismatch(
        rule.name, "pattern", f"{best.variant.name}: {best.reason}", best.node or node.name
    )


def _accept(rule: FusionRule, attempt: _Attempt, taken: set[fx.Node]) -> str | None:
    shared = [node.name for node in attempt.nodes.values() if node in taken]
    if shared:
        return f"{shared[0]} belongs to another fusion"
    return rule.check(_as_match(rule, attempt))


def _as_match(rule: FusionRule, attempt: _Attempt) -> Match:
    nodes = sorted(attempt.nodes.values())
    return Match(rule.name, attempt.variant.name, tuple(nodes), dict(attempt.bindings))


def _unify(pattern: fx.Node, node: Any, reader: fx.Node, attempt: _Attempt) -> bool:
    """Bind `pattern` to `node`, an argument of `reader`; on failure the attempt's bindings are as
    before.
    """
    if pattern.op == "placeholder":
        return _bind(pattern.name, node, reader, attempt)
    node, casts = _through_casts(node)
    if not isinstance(node, fx.Node) or node.target != pattern.target:
        found = node if isinstance(node, fx.Node) else reader
        return attempt.fail(f"needs {pattern.target} here, found {_what(node)}", found)
    if pattern in attempt.nodes:
        attempt.nodes |= {cast: cast for cast in casts}
        return attempt.nodes[pattern] is node
    saved = (dict(attempt.bindings), dict(attempt.nodes), attempt.fitting)
    attempt.nodes[pattern] = node
    attempt.nodes |= {cast: cast for cast in casts}
    wanted, given = _arguments(pattern), _arguments(node)
    for order in _orders(pattern):
        permuted = dict(given)
        for name, source in zip(("self", "other"), order, strict=True):
            if source in given:
                permuted[name] = given[source]
        if _unify_arguments(wanted, permuted, node, attempt):
            return True
        attempt.bindings = dict(saved[0])
        attempt.nodes = {**saved[1], pattern: node, **{cast: cast for cast in casts}}
        attempt.fitting = saved[2]
    attempt.bindings, attempt.nodes, attempt.fitting = saved
    return False


def _through_casts(node: Any) -> tuple[Any, list[fx.Node]]:
    """What a chain of casts is made from, and the casts: a pattern says nothing of dtypes."""
    casts: list[fx.Node] = []
    while isinstance(node, fx.Node) and str(node.target) in CASTS:
        casts.append(node)
        node = node.args[0]
    return node, casts


def _what(node: Any) -> str:
    if node is None:
        return "nothing"
    if not isinstance(node, fx.Node):
        return f"the number {node}"
    return str(node.target) if node.op == "call_function" else "an input"


def _orders(pattern: fx.Node) -> tuple[tuple[str, str], ...]:
    straight, swapped = ("self", "other"), ("other", "self")
    return (straight, swapped) if str(pattern.target) in _COMMUTATIVE else (straight,)


def _unify_arguments(
    wanted: dict[str, Any], given: dict[str, Any], node: fx.Node, attempt: _Attempt
) -> bool:
    for name, value in wanted.items():
        if not _unify_argument(name, value, given.get(name), node, attempt):
            return False
        attempt.fitting += 1
    return True


def _unify_argument(name: str, wanted: Any, given: Any, node: fx.Node, attempt: _Attempt) -> bool:
    if isinstance(wanted, fx.Node):
        return _unify(wanted, given, node, attempt)
    if isinstance(wanted, list | tuple) and any(isinstance(part, fx.Node) for part in wanted):
        pairs = list(zip(wanted, given, strict=False))
        return len(wanted) == len(given) and all(_unify(*p, node, attempt) for p in pairs)
    for parameter, example in attempt.variant.examples.items():
        if isinstance(example, float) and wanted == example:
            return _bind(parameter, given, node, attempt)
    if isinstance(
        wanted, list | tuple
    ):  # sizes of the example: the rule's check looks at real ones
        return True
    if wanted != given and name not in _IGNORED:
        return attempt.fail(f"{name} is {given}, the rule needs {wanted}", node)
    return True


def _bind(name: str, value: Any, reader: fx.Node, attempt: _Attempt) -> bool:
    if name in attempt.bindings:
        known = _through_casts(attempt.bindings[name])[0]
        other = _through_casts(value)[0]
        if known is not other and known != other:
            return attempt.fail(f"{name} is two different values", reader)
        return True
    example = attempt.variant.examples[name]
    if value is None and name in attempt.variant.optional:
        attempt.bindings[name] = None
        return True
    if isinstance(example, tuple):
        if not isinstance(value, fx.Node):
            return attempt.fail(f"{name} is the number {value}, not a tensor", reader)
        shape = tuple(value.meta["val"].shape)
        if len(example) == 1 and len(shape) != 1:
            return attempt.fail(f"{name} of shape {shape} is not a vector", value)
    attempt.bindings[name] = value
    return True


def _arguments(node: fx.Node) -> dict[str, Any]:
    """The node's arguments by their schema's names, defaults filled in."""
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    found: dict[str, Any] = {}
    for position, argument in enumerate(target._schema.arguments):
        if position < len(node.args):
            found[argument.name] = node.args[position]
        elif argument.name in node.kwargs:
            found[argument.name] = node.kwargs[argument.name]
        else:
            found[argument.name] = argument.default_value
    return found


def _root(graph: fx.Graph) -> fx.Node:
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    root = output.args[0]
    assert isinstance(root, fx.Node)
    return root


_TRACES: dict[int, tuple[Variant, fx.Graph]] = {}


def _traced(variant: Variant) -> fx.Graph:
    """The pattern as a graph of ATen operators, composites whole, traced once a process."""
    if id(variant) not in _TRACES:
        _TRACES[id(variant)] = (variant, _trace(variant))
    return _TRACES[id(variant)][1]


def _trace(variant: Variant) -> fx.Graph:
    shapes = {name: e for name, e in variant.examples.items() if isinstance(e, tuple)}
    numbers = {name: e for name, e in variant.examples.items() if not isinstance(e, tuple)}

    def pattern(*tensors: Any) -> Any:
        return variant.pattern(**dict(zip(shapes, tensors, strict=True)), **numbers)

    tensors = [torch.zeros(shape) for shape in shapes.values()]
    graph = make_fx(pattern, pre_dispatch=True)(*tensors).graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for node, name in zip(placeholders, shapes, strict=True):
        node.name = name
    return graph
