"""Products taken apart: one number times factors, whatever their order and grouping, with
divisions by numbers and small powers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

from torch import fx

from planner.graph.view import CASTS, op_name

_MUL, _DIV, _SQUARE = "aten.mul.Tensor", "aten.div.Tensor", "aten.square.default"
_POW = "aten.pow.Tensor_Scalar"
_POWERS = (2, 3)
_DEEPEST = 8


@dataclass(frozen=True, slots=True)
class Product:
    """`number` times the `factors`; `nodes` are the operators and casts taken apart for it."""

    number: float
    factors: tuple[fx.Node, ...]
    nodes: tuple[fx.Node, ...] = ()


def is_product(node: Any) -> bool:
    """Whether the node multiplies: two tensors, a tensor and a number, or a tensor by itself."""
    if not isinstance(node, fx.Node) or node.op != "call_function":
        return False
    op = op_name(node)
    other: Any = node.args[1] if len(node.args) == 2 else None
    if op == _MUL:
        return is_number(other) or isinstance(other, fx.Node)
    if op == _POW:
        return is_number(other) and other in _POWERS
    return op == _SQUARE or is_quotient(node)


def is_quotient(node: fx.Node) -> bool:
    """Whether the node divides a tensor by a number that is not zero."""
    return op_name(node) == _DIV and is_number(node.args[1]) and node.args[1] != 0


def splittings(node: fx.Node, most: int, depth: int = _DEEPEST) -> Iterator[Product]:
    """Every way to take a product apart into at most `most` factors, the coarsest first.

    What lies more than `depth` multiplications below is left whole.
    """
    for parts in _operands(node, most, depth):
        product = _multiplied(node, parts)
        if len(product.factors) <= most:
            yield product


def through_casts(node: Any) -> tuple[Any, tuple[fx.Node, ...]]:
    """What a chain of casts is made from, and the casts: a pattern says nothing of dtypes."""
    casts: list[fx.Node] = []
    while isinstance(node, fx.Node) and str(node.target) in CASTS:
        casts.append(node)
        node = node.args[0]
    return node, tuple(casts)


def is_number(value: Any) -> TypeGuard[float]:
    """Whether the argument is a Python number, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _operands(node: fx.Node, most: int, depth: int) -> Iterator[tuple[Product, ...]]:
    op, args = op_name(node), node.args
    if op == _DIV:
        divisor = Product(1.0 / cast(float, args[1]), ())
        yield from ((part, divisor) for part in _parts(args[0], most, depth - 1))
    elif op == _MUL:
        yield from itertools.product(
            _parts(args[0], most, depth - 1), _parts(args[1], most, depth - 1)
        )
    else:
        power = 2 if op == _SQUARE else int(cast(float, args[1]))
        yield from ((part,) * power for part in _parts(args[0], most, depth - 1))


def _parts(value: Any, most: int, depth: int) -> Iterator[Product]:
    """An operand of a product: a number, a factor, or a product that is taken apart too."""
    if is_number(value):
        yield Product(float(value), ())
        return
    yield Product(1.0, (value,))
    inner, casts = through_casts(value)
    if depth and is_product(inner):
        for product in splittings(inner, most, depth):
            yield Product(product.number, product.factors, (*product.nodes, *casts))


def _multiplied(node: fx.Node, parts: tuple[Product, ...]) -> Product:
    number = 1.0
    for part in parts:
        number *= part.number
    factors = tuple(factor for part in parts for factor in part.factors)
    nodes = dict.fromkeys((node, *(inner for part in parts for inner in part.nodes)))
    return Product(number, factors, tuple(nodes))
