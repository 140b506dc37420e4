"""A rule's pattern as a graph of ATen operators with its products taken apart, traced once a
process.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from fusion_kernels.rule import Variant
from planner.fusion.products import Product, is_number, is_product, is_quotient, splittings


@dataclass(frozen=True, slots=True)
class Spelling:
    """One traced way to write a variant.

    `root` computes the result, `size` counts the operators, a product as one. `products` holds for
    each product what is known of it, and the numeric parameter among its numbers with the sign of
    its power.
    """

    root: fx.Node
    size: int
    products: Mapping[fx.Node, tuple[Product, tuple[str, int] | None]]


def spellings_of(variant: Variant) -> tuple[Spelling, ...]:
    """Every spelling of a variant, its pattern first, composites whole."""
    if id(variant) not in _SPELLINGS:
        roots = [_trace(variant, form) for form in (variant.pattern, *variant.spellings)]
        _SPELLINGS[id(variant)] = (variant, tuple(_spelling(variant, root) for root in roots))
    return _SPELLINGS[id(variant)][1]


def parameter_of(value: Any, variant: Variant) -> str | None:
    """The numeric parameter whose example `value` is."""
    examples = variant.examples.items()
    return next((n for n, e in examples if isinstance(e, float) and e == value), None)


_SPELLINGS: dict[int, tuple[Variant, tuple[Spelling, ...]]] = {}


def _spelling(variant: Variant, root: fx.Node) -> Spelling:
    products: dict[fx.Node, tuple[Product, tuple[str, int] | None]] = {}
    return Spelling(root, len(_operators(root, variant, products)), products)


def _operators(root: fx.Node, variant: Variant, products: dict[fx.Node, Any]) -> set[fx.Node]:
    """The operators that `root` is computed with; products are added to `products` and count as
    one operator.
    """
    if root.op != "call_function":
        return set()
    sources: Sequence[fx.Node] = root.all_input_nodes
    if is_product(root):
        products[root] = _finest(root, variant)
        sources = products[root][0].factors
    return {root}.union(*(_operators(source, variant, products) for source in sources))


def _finest(root: fx.Node, variant: Variant) -> tuple[Product, tuple[str, int] | None]:
    *_, product = splittings(root, 2 * len(root.graph.nodes))
    for node in product.nodes:
        number: Any = node.args[-1]
        name = parameter_of(number, variant) if is_number(number) else None
        if name is not None:
            sign = -1 if is_quotient(node) else 1
            return replace(product, number=product.number / number**sign), (name, sign)
    return product, None


def _trace(variant: Variant, function: Callable[..., Any]) -> fx.Node:
    taken = [name for name in inspect.signature(function).parameters if name in variant.examples]
    examples = {name: variant.examples[name] for name in taken}
    shapes = {name: example for name, example in examples.items() if isinstance(example, tuple)}
    numbers = {name: e for name, e in examples.items() if not isinstance(e, tuple)}

    def pattern(*tensors: Any) -> Any:
        return function(**dict(zip(shapes, tensors, strict=True)), **numbers)

    tensors = [torch.zeros(shape, dtype=_dtype(variant, name)) for name, shape in shapes.items()]
    graph = make_fx(pattern, pre_dispatch=True)(*tensors).graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for node, name in zip(placeholders, shapes, strict=True):
        node.name = name
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    root = output.args[0]
    assert isinstance(root, fx.Node)
    return root


def _dtype(variant: Variant, name: str) -> torch.dtype:
    if name in variant.indices:
        return torch.int64
    return torch.bool if name in variant.masks else torch.float32
