"""Holds a pattern against a place of a graph: every way in which the two can be made equal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from fusion_kernels.rule import Variant
from planner.counted import counted
from planner.fusion.attempt import Attempt, Unified
from planner.fusion.dimensions import PERMUTING, RESHAPING
from planner.fusion.patterns import parameter_of
from planner.fusion.products import is_number, is_product, splittings, through_casts
from planner.graph.view import op_name

_COMMUTATIVE = ("aten.add.Tensor",)
# Arguments that pick an implementation, or a dtype as a cast would, or matter in training alone,
# and those that a rule leaves open: any number of groups will do.
_IGNORED = (
    *("cudnn_enable", "cudnn_enabled", "dtype", "num_groups"),
    *("padding_idx", "scale_grad_by_freq", "sparse"),
)
# Operators that may stand for one another: the rule's check looks at what they do to the shape.
_ALIKE = (PERMUTING, RESHAPING)
# Decimals of a constant that programs leave out: 0.79788456 is sqrt(2 / pi), 0.7979 is not.
_SPELLING = 1e-6


def may_stand_for(root: fx.Node, node: fx.Node) -> bool:
    """Whether the pattern's last operator is the node's, a cheap first look."""
    if is_product(root):
        return is_product(node)
    if node.op != "call_function":
        return False
    return node.target == root.target or any(
        op_name(root) in alike and op_name(node) in alike for alike in _ALIKE
    )


def unifications(node: fx.Node, attempt: Attempt) -> Iterator[Unified]:
    """Every way to make the attempt's pattern equal to what `node` computes."""
    return _unify(attempt.spelling.root, node, node, Unified(), attempt)


def _unify(
    pattern: fx.Node, node: Any, reader: fx.Node, state: Unified, attempt: Attempt
) -> Iterator[Unified]:
    """Make `pattern` equal to `node`, an argument of `reader`."""
    if pattern.op == "placeholder":
        yield from _bind(pattern.name, node, reader, state, attempt)
        return
    node, casts = through_casts(node)
    if not isinstance(node, fx.Node) or not may_stand_for(pattern, node):
        found = node if isinstance(node, fx.Node) else reader
        what = "a product" if is_product(pattern) else str(pattern.target)
        attempt.fail(state, f"needs {what} here, found {_what(node)}", found)
    elif pattern in state.operators:
        if state.operators[pattern] is node:
            yield replace(state, passed=(*state.passed, *casts))
    elif is_product(pattern):
        yield from _unify_product(pattern, node, state.entered(pattern, node, casts), attempt)
    else:
        entered = state.entered(pattern, node, casts)
        wanted, given = _arguments(pattern), _arguments(node)
        if any(op_name(pattern) in alike for alike in _ALIKE):
            wanted = {"self": wanted["self"]}
        for order in _orders(pattern):
            permuted = {**given, **{name: given[source] for name, source in order}}
            pairs = [(name, value, permuted.get(name)) for name, value in wanted.items()]
            yield from _unify_arguments(pairs, pattern, node, entered, attempt)


def _unify_product(
    pattern: fx.Node, node: fx.Node, state: Unified, attempt: Attempt
) -> Iterator[Unified]:
    """Products are equal when their factors are in some order, and their numbers."""
    wanted, unknown = attempt.spelling.products[pattern]
    # Operators first: they fit in fewer places than parameters, which take anything.
    factors = sorted(wanted.factors, key=lambda factor: factor.op == "placeholder")
    fitting = [p for p in splittings(node, len(factors)) if len(p.factors) == len(factors)]
    if not fitting:
        attempt.fail(state, f"needs {counted(len(factors), 'factor')} here", node)
    for product in fitting:
        inner = replace(state, passed=(*state.passed, *product.nodes))
        for found in _assign(factors, product.factors, node, inner, attempt):
            number = product.number / wanted.number
            if unknown is not None:
                value = number if unknown[1] > 0 else 1.0 / number
                yield from _bind_number(unknown[0], value, node, found, attempt)
            elif _same_number(number, 1.0):
                yield replace(found, fitting=found.fitting + 1)
            else:
                is_and_needs = f"is {product.number:.8g}, the rule needs {wanted.number:.8g}"
                attempt.fail(found, f"the constant {is_and_needs}", node, by_number=True)


def _assign(
    wanted: Sequence[fx.Node],
    given: Sequence[fx.Node],
    reader: fx.Node,
    state: Unified,
    attempt: Attempt,
) -> Iterator[Unified]:
    """Each wanted factor to another given one, in every order."""
    if not wanted:
        yield state
        return
    for index, factor in enumerate(given):
        if factor in given[:index]:
            continue
        rest = (*given[:index], *given[index + 1 :])
        for found in _unify(wanted[0], factor, reader, state, attempt):
            yield from _assign(wanted[1:], rest, reader, found, attempt)


def _unify_arguments(
    pairs: Sequence[tuple[str, Any, Any]],
    pattern: fx.Node,
    node: fx.Node,
    state: Unified,
    attempt: Attempt,
) -> Iterator[Unified]:
    if not pairs:
        yield state
        return
    (name, wanted, given), *rest = pairs
    if name == "dim" and isinstance(wanted, int) and isinstance(given, int):
        wanted, given = _from_the_end(wanted, pattern), _from_the_end(given, node)
    for found in _unify_argument(name, wanted, given, node, state, attempt):
        fitting = replace(found, fitting=found.fitting + 1)
        yield from _unify_arguments(rest, pattern, node, fitting, attempt)


def _unify_argument(
    name: str, wanted: Any, given: Any, node: fx.Node, state: Unified, attempt: Attempt
) -> Iterator[Unified]:
    parameter = parameter_of(wanted, attempt.variant)
    if isinstance(wanted, fx.Node):
        yield from _unify(wanted, given, node, state, attempt)
    elif isinstance(wanted, list | tuple) and any(isinstance(part, fx.Node) for part in wanted):
        if len(wanted) == len(given):
            yield from _unify_each(list(zip(wanted, given, strict=True)), node, state, attempt)
    elif parameter is not None:
        yield from _bind_number(parameter, given, node, state, attempt)
    elif isinstance(wanted, list | tuple) or name in _IGNORED:
        # Sizes are the example's: the rule's check looks at the real ones.
        yield state
    elif wanted == given or _same_number(wanted, given):
        yield state
    else:
        by_number = is_number(wanted) and is_number(given)
        reason = f"{name} is {given}, the rule needs {wanted}"
        attempt.fail(state, reason, node, by_number=by_number)


def _unify_each(
    pairs: Sequence[tuple[fx.Node, Any]], node: fx.Node, state: Unified, attempt: Attempt
) -> Iterator[Unified]:
    if not pairs:
        yield state
        return
    for found in _unify(*pairs[0], node, state, attempt):
        yield from _unify_each(pairs[1:], node, found, attempt)


def _bind(
    name: str, value: Any, reader: fx.Node, state: Unified, attempt: Attempt
) -> Iterator[Unified]:
    if name in state.bindings:
        known, other = (through_casts(v)[0] for v in (state.bindings[name], value))
        if known is other or known == other:
            yield state
        else:
            attempt.fail(state, f"{name} is two different values", reader)
        return
    reason = None
    if value is not None or name not in attempt.variant.optional:
        reason = _not_a(name, value, attempt.variant)
    if reason is None:
        yield state.bound(name, value)
    else:
        attempt.fail(state, reason, value if isinstance(value, fx.Node) else reader)


def _not_a(name: str, value: Any, variant: Variant) -> str | None:
    """Why `value` cannot be the tensor that the parameter is."""
    if not isinstance(value, fx.Node):
        return f"{name} is the number {value}, not a tensor"
    tensor = value.meta["val"]
    shape, example = tuple(tensor.shape), variant.examples[name]
    if isinstance(example, tuple) and len(example) == 1 and len(shape) != 1:
        return f"{name} of shape {shape} is not a vector"
    if name in variant.masks and tensor.dtype != torch.bool:
        return f"{name} holds {tensor.dtype}, not truth values"
    return None


def _bind_number(
    name: str, value: Any, reader: fx.Node, state: Unified, attempt: Attempt
) -> Iterator[Unified]:
    if name not in state.bindings:
        yield state.bound(name, value)
    elif state.bindings[name] == value or _same_number(state.bindings[name], value):
        yield state
    else:
        known = state.bindings[name]
        attempt.fail(state, f"{name} is both {known:.8g} and {value:.8g}", reader, by_number=True)


def _same_number(one: Any, other: Any) -> bool:
    return is_number(one) and is_number(other) and math.isclose(one, other, rel_tol=_SPELLING)


def _from_the_end(dim: int, node: fx.Node) -> int:
    rank = node.meta["val"].dim()
    return dim % rank - rank if rank else dim


def _orders(pattern: fx.Node) -> tuple[tuple[tuple[str, str], ...], ...]:
    """The orders in which the operator's arguments may stand, as (name, whose place)."""
    swapped = (("self", "other"), ("other", "self"))
    return ((), swapped) if str(pattern.target) in _COMMUTATIVE else ((),)


def _what(node: Any) -> str:
    if node is None:
        return "nothing"
    if not isinstance(node, fx.Node):
        return f"the number {node}"
    return str(node.target) if node.op == "call_function" else "an input"


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
