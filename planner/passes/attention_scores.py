"""Reads written-out attention scores back to their product: query, key, scale and mask."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from planner.passes.cancel_pairs import keeps_every_value
from planner.passes.noops import same_sizes

aten = torch.ops.aten

PRODUCTS = {aten.matmul.default, aten.bmm.default}


@dataclass(frozen=True, slots=True)
class Added:
    """A mask that is added to the scores."""

    mask: fx.Node


@dataclass(frozen=True, slots=True)
class Filled:
    """A boolean mask under which the scores are `value`; `hides` tells whether true means that."""

    mask: fx.Node
    hides: bool
    value: float
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Scores:
    """softmax's argument: query @ key_t * scale, masked."""

    query: fx.Node
    key_t: fx.Node
    scale: float = 1.0
    mask: Added | Filled | None = None


def scores_of(node: Any, reader: fx.Node, known: Mapping[str, Tensor]) -> Scores | str:
    """The scores that `node` holds for its only reader; the reason where they are none.

    `known` has the values of constants by name.
    """
    if not isinstance(node, fx.Node) or node.op != "call_function":
        return "the softmax is not of a product"
    if list(node.users) != [reader]:
        return f"{node.name} is read elsewhere too"
    if node.target in PRODUCTS:
        query, key_t = node.args
        assert isinstance(query, fx.Node)
        assert isinstance(key_t, fx.Node)
        return Scores(query, key_t)
    if node.target is aten._to_copy.default:
        return _cast(node, known)
    if node.target in (aten.mul.Tensor, aten.div.Tensor):
        return _scaled(node, known)
    if node.target is aten.add.Tensor:
        return _added(node, known)
    return _filled(node, known)


def _cast(node: fx.Node, known: Mapping[str, Tensor]) -> Scores | str:
    source: Any = node.args[0]
    if not keeps_every_value(source.meta["val"].dtype, node.meta["val"].dtype):
        return f"{node.name} rounds the scores"
    return scores_of(source, node, known)


def _scaled(node: fx.Node, known: Mapping[str, Tensor]) -> Scores | str:
    source, by = node.args[:2]
    if node.target is aten.mul.Tensor and _number(source, known) is not None:
        source, by = by, source
    factor = _number(by, known)
    if factor is None or not math.isfinite(factor) or factor <= 0:
        return f"{node.name} scales by no positive number"
    scores = scores_of(source, node, known)
    if isinstance(scores, str):
        return scores
    if scores.mask is not None:
        return "the scores are scaled after they are masked"
    scale = scores.scale * factor if node.target is aten.mul.Tensor else scores.scale / factor
    return replace(scores, scale=scale) if _same_form(node, source) else "the scale is a tensor"


def _added(node: fx.Node, known: Mapping[str, Tensor]) -> Scores | str:
    if node.kwargs.get("alpha", 1) != 1:
        return f"{node.name} scales the mask"
    found: Scores | str = "the softmax is not of a product"
    for source, mask in (node.args[:2], node.args[1::-1]):
        if isinstance(mask, fx.Node) and _same_form(node, source):
            found = scores_of(source, node, known)
            if not isinstance(found, str):
                return _masked(found, Added(mask))
    return found


def _filled(node: fx.Node, known: Mapping[str, Tensor]) -> Scores | str:
    if node.target in (aten.masked_fill.Scalar, aten.masked_fill.Tensor):
        source, mask, value = node.args
        hides = True
    elif node.target in (aten.where.ScalarOther, aten.where.self):
        mask, source, value = node.args
        hides = False
    else:
        return f"{node.name} stands between product and softmax"
    number = _number(value, known)
    if number is None or not isinstance(mask, fx.Node) or not _same_form(node, source):
        return f"{node.name} does not fill scores with a number"
    scores = scores_of(source, node, known)
    if isinstance(scores, str):
        return scores
    return _masked(scores, Filled(mask, hides, number, node.meta["val"].dtype))


def _masked(scores: Scores, mask: Added | Filled) -> Scores | str:
    return "the scores are masked twice" if scores.mask else replace(scores, mask=mask)


def _same_form(node: fx.Node, source: Any) -> bool:
    """Whether the operator neither widens nor promotes the scores."""
    if not isinstance(source, fx.Node):
        return False
    own, result = source.meta["val"], node.meta["val"]
    return bool(own.dtype == result.dtype) and same_sizes(own.shape, result.shape)


def _number(value: Any, known: Mapping[str, Tensor]) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    held = known.get(value.name) if isinstance(value, fx.Node) else None
    return float(held) if held is not None and held.ndim == 0 and held.is_floating_point() else None
