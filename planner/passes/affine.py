"""What integers and booleans of a graph are, index by index, where they follow from sizes alone.

An integer tensor is `base + sum(steps[d] * index[d])`, a boolean one is true where such a sum is 0
or more. So a mask that a graph makes of `arange`s is known for every size at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Affine:
    """`base + sum(steps[d] * index[d])`; with `is_condition` the boolean whether that is >= 0."""

    base: int
    steps: tuple[int, ...]
    is_condition: bool = False

    @property
    def constant(self) -> int | None:
        """The one value that every element has, None where they differ: 1 and 0 of a condition."""
        if self.is_condition:
            if self.base >= 0 and all(step >= 0 for step in self.steps):
                return 1
            return 0 if self.base < 0 and all(step <= 0 for step in self.steps) else None
        return self.base if not any(self.steps) else None

    @property
    def is_causal(self) -> bool:
        """True where the last index is not beyond the one before it."""
        wanted = (*[0] * (len(self.steps) - 2), 1, -1)
        return self.is_condition and self.base == 0 and self.steps == wanted


Values = Mapping[fx.Node, Affine]


def affine_values(graph: fx.Graph) -> dict[fx.Node, Affine]:
    """Every value of the graph that is known in this way."""
    found: dict[fx.Node, Affine] = {}
    for node in graph.nodes:
        value = node.meta.get("val")
        rule = _RULES.get(node.target) if node.op == "call_function" else None
        if rule is None or not isinstance(value, Tensor) or value.is_floating_point():
            continue
        result = rule(node, found)
        if result is not None:
            pairs = zip(result.steps, value.shape, strict=True)
            steps = tuple(0 if _is_one(size) else step for step, size in pairs)
            found[node] = replace(result, steps=steps)
    return found


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def _arange(node: fx.Node, _: Values) -> Affine | None:
    start = node.args[0] if len(node.args) > 1 else 0
    step = node.args[2] if len(node.args) > 2 else 1
    return Affine(start, (step,)) if isinstance(start, int) and isinstance(step, int) else None


def _filled(value: int | None) -> Callable[[fx.Node, Values], Affine | None]:
    def rule(node: fx.Node, _: Values) -> Affine | None:
        own = node.args[-1] if value is None else value
        return _of_number(own, node) if isinstance(own, int) else None

    return rule


def _of_number(value: int, node: fx.Node) -> Affine:
    """Every element the same."""
    steps = (0,) * node.meta["val"].dim()
    if node.meta["val"].dtype is torch.bool:
        return Affine(0 if value else -1, steps, is_condition=True)
    return Affine(int(value), steps)


def _same(node: fx.Node, known: Values) -> Affine | None:
    source: Any = node.args[0]
    as_before = node.meta["val"].dtype == source.meta["val"].dtype
    return known.get(source) if as_before else None


def _unsqueezed(node: fx.Node, known: Values) -> Affine | None:
    own = _first(node, known)
    if own is None:
        return None
    dim = _arguments(node)["dim"] % (len(own.steps) + 1)
    return replace(own, steps=(*own.steps[:dim], 0, *own.steps[dim:]))


def _expanded(node: fx.Node, known: Values) -> Affine | None:
    own = _first(node, known)
    return None if own is None else _padded(own, node.meta["val"].dim())


def _sliced(node: fx.Node, known: Values) -> Affine | None:
    given = _arguments(node)
    dim, start, step = given.get("dim", 0), given.get("start") or 0, given.get("step", 1)
    own = _first(node, known)
    if own is None or not isinstance(start, int) or not isinstance(step, int) or start < 0:
        return None
    steps = list(own.steps)
    base = own.base + start * steps[dim]
    steps[dim] *= step
    return Affine(base, tuple(steps), own.is_condition)


def _indexed(node: fx.Node, known: Values) -> Affine | None:
    """Indices from 0 on that follow their own index: the composition of both."""
    given = _arguments(node)["indices"]
    own = _first(node, known)
    if own is None or len(given) != len(own.steps):
        return None
    if not all(isinstance(one, fx.Node) and one.meta["val"].dtype is torch.int64 for one in given):
        return None
    rank = node.meta["val"].dim()
    total = Affine(own.base, (0,) * rank, own.is_condition)
    for step, index in zip(own.steps, map(known.get, given), strict=True):
        if not step:
            continue
        if index is None or index.base < 0 or min(index.steps, default=0) < 0:
            return None  # an index below 0 counts from the end
        total = _plus(total, index, step, rank)
    return total


def _added(sign: int) -> Callable[[fx.Node, Values], Affine | None]:
    def rule(node: fx.Node, known: Values) -> Affine | None:
        return _combined(node, known, sign) if node.kwargs.get("alpha", 1) == 1 else None

    return rule


def _differences(node: fx.Node, known: Values) -> Affine | None:
    """diff along a dimension: the step there, also of what is put before the first."""
    given = _arguments(node)
    own, dim, before = _first(node, known), given.get("dim", -1), given.get("prepend")
    if own is None or own.is_condition or given.get("n", 1) != 1 or given.get("append") is not None:
        return None
    step = own.steps[dim]
    if before is not None:
        first = known.get(before)
        elsewhere = list(own.steps)
        elsewhere[dim] = 0
        if first is None or list(first.steps) != elsewhere or own.base - first.base != step:
            return None
    return Affine(step, (0,) * len(own.steps))


def _summed(node: fx.Node, known: Values) -> Affine | None:
    """cumsum of one value."""
    own = _first(node, known)
    value = None if own is None else own.constant
    if own is None or value is None:
        return None
    steps = [0] * len(own.steps)
    steps[_arguments(node)["dim"]] = value
    return Affine(value, tuple(steps))


def _compared(sign: int, least: int) -> Callable[[fx.Node, Values], Affine | None]:
    """sign * (left - right) >= least."""

    def rule(node: fx.Node, known: Values) -> Affine | None:
        distance = _combined(node, known, -1)
        if distance is None:
            return None
        steps = tuple(sign * step for step in distance.steps)
        return Affine(sign * distance.base - least, steps, is_condition=True)

    return rule


def _equal(wanted: bool) -> Callable[[fx.Node, Values], Affine | None]:
    def rule(node: fx.Node, known: Values) -> Affine | None:
        distance = _combined(node, known, -1)
        if distance is None or distance.constant is None:
            return None
        return _of_number((distance.constant == 0) is wanted, node)

    return rule


def _both(node: fx.Node, known: Values) -> Affine | None:
    left, right = _operands(node, known)
    if left is None or right is None or not (left.is_condition and right.is_condition):
        return None
    rank = node.meta["val"].dim()
    left, right = _padded(left, rank), _padded(right, rank)
    if left.constant == 1 or left == right:
        return right
    if right.constant == 1 or left.constant == 0:
        return left
    return right if right.constant == 0 else None


def _combined(node: fx.Node, known: Values, sign: int) -> Affine | None:
    """left + sign * right."""
    left, right = _operands(node, known)
    if left is None or right is None or left.is_condition or right.is_condition:
        return None
    rank = node.meta["val"].dim()
    return _plus(_padded(left, rank), right, sign, rank)


def _operands(node: fx.Node, known: Values) -> tuple[Affine | None, Affine | None]:
    def one(operand: Any) -> Affine | None:
        if isinstance(operand, int) and not isinstance(operand, bool):
            return Affine(operand, ())
        return known.get(operand) if isinstance(operand, fx.Node) else None

    return one(node.args[0]), one(node.args[1])


def _first(node: fx.Node, known: Values) -> Affine | None:
    source: Any = node.args[0]
    return known.get(source)


def _arguments(node: fx.Node) -> dict[str, Any]:
    """The call's arguments by their names, without defaults."""
    target: Any = node.target
    names = [argument.name for argument in target._schema.arguments]
    return dict(zip(names, node.args, strict=False)) | dict(node.kwargs)


def _plus(total: Affine, other: Affine, times: int, rank: int) -> Affine:
    pairs = zip(total.steps, _padded(other, rank).steps, strict=True)
    steps = tuple(left + times * right for left, right in pairs)
    return Affine(total.base + times * other.base, steps, total.is_condition)


def _padded(value: Affine, rank: int) -> Affine:
    return replace(value, steps=(*(0,) * (rank - len(value.steps)), *value.steps))


_RULES: dict[Any, Callable[[fx.Node, Values], Affine | None]] = {
    **dict.fromkeys((aten.arange.default, aten.arange.start, aten.arange.start_step), _arange),
    **dict.fromkeys((aten.ones.default, aten.new_ones.default, aten.ones_like.default), _filled(1)),
    **dict.fromkeys(
        (aten.zeros.default, aten.new_zeros.default, aten.zeros_like.default), _filled(0)
    ),
    **dict.fromkeys((aten.full.default, aten.new_full.default), _filled(None)),
    **dict.fromkeys(
        (aten.alias.default, aten.clone.default, aten.contiguous.default, aten._to_copy.default),
        _same,
    ),
    aten.unsqueeze.default: _unsqueezed,
    aten.expand.default: _expanded,
    aten.slice.Tensor: _sliced,
    aten.index.Tensor: _indexed,
    aten.add.Tensor: _added(1),
    aten.sub.Tensor: _added(-1),
    aten.diff.default: _differences,
    aten.cumsum.default: _summed,
    **dict.fromkeys((aten.ge.Tensor, aten.ge.Scalar), _compared(1, 0)),
    **dict.fromkeys((aten.gt.Tensor, aten.gt.Scalar), _compared(1, 1)),
    **dict.fromkeys((aten.le.Tensor, aten.le.Scalar), _compared(-1, 0)),
    **dict.fromkeys((aten.lt.Tensor, aten.lt.Scalar), _compared(-1, 1)),
    **dict.fromkeys((aten.eq.Tensor, aten.eq.Scalar), _equal(True)),
    **dict.fromkeys((aten.ne.Tensor, aten.ne.Scalar), _equal(False)),
    **dict.fromkeys(
        (aten.__and__.Tensor, aten.bitwise_and.Tensor, aten.logical_and.default), _both
    ),
}
