"""The mask that scaled_dot_product_attention takes for one that was written out, row for row the
same.

Where a row hides every key, forms differ: softmax of -inf alone is NaN, softmax of one large
negative number is uniform, and the operator gives zeros under a boolean mask.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from planner.passes.attention_scores import Added, Filled, Scores
from planner.passes.constants import add_constant
from planner.passes.insert import insert_call

aten = torch.ops.aten

_ZEROS = {aten.zeros.default, aten.zeros_like.default}
_CHOICES = {aten.where.ScalarOther, aten.where.Scalar, aten.where.self, aten.where.ScalarSelf}
_VIEWS = {
    aten.expand.default,
    aten.clone.default,
    aten.unsqueeze.default,
    aten.slice.Tensor,
    aten.view.default,
}


@dataclass(frozen=True, slots=True)
class Masking:
    """What the operator is given, and which rows of its result must become NaN."""

    given: fx.Node | None = None
    hidden_rows: fx.Node | None = None


def masking(
    program: ExportedProgram, scores: Scores, known: Mapping[str, Tensor], before: fx.Node
) -> Masking | str:
    """Insert in front of `before` what the mask of `scores` becomes; the reason where it cannot."""
    if scores.mask is None:
        return Masking()
    value = scores.mask.mask.meta["val"]
    rank = scores.query.meta["val"].ndim
    if value.ndim not in (2, rank):
        return f"the mask has {value.ndim} dimensions"
    if isinstance(scores.mask, Added):
        return _added(program, scores, known, before)
    return _filled(program, scores, scores.mask, known.get(scores.mask.mask.name), before)


def _added(
    program: ExportedProgram, scores: Scores, known: Mapping[str, Tensor], before: fx.Node
) -> Masking | str:
    assert isinstance(scores.mask, Added)
    mask, dtype = scores.mask.mask, scores.query.meta["val"].dtype
    shown = _shown(known[mask.name]) if mask.name in known else None
    if shown is not None:
        return Masking(_constant(program, mask, shown))
    if mask.meta["val"].dtype != dtype:
        return "the mask has another dtype than the query"
    if dtype is torch.float16:
        return "a mask added in float16 rounds the scores"
    if _is_finite(mask, known):
        return Masking(mask)
    gone = insert_call(program.graph, before, aten.eq.Scalar, (mask, -math.inf))
    rows = insert_call(program.graph, before, aten.all.dim, (gone, -1, True))
    return Masking(mask, rows)


def _shown(mask: Tensor) -> Tensor | None:
    """The boolean form of a mask that adds 0 or hides, and leaves every row a key; else None."""
    if not mask.is_floating_point():
        return None
    shown = mask == 0
    hidden = mask <= torch.finfo(mask.dtype).min
    return shown if bool((shown | hidden).all()) and bool(shown.any(-1).all()) else None


def _filled(
    program: ExportedProgram, scores: Scores, mask: Filled, constant: Tensor | None, before: fx.Node
) -> Masking | str:
    if mask.mask.meta["val"].dtype is not torch.bool:
        return "the mask is not boolean"
    if mask.value != -math.inf and mask.value != torch.finfo(mask.dtype).min:
        return f"masked scores become {mask.value}, neither -inf nor the lowest {mask.dtype}"
    if constant is not None:
        hidden = constant if mask.hides else ~constant
        if not bool(hidden.all(-1).any()):
            shown = mask.mask
            return Masking(_constant(program, shown, ~constant) if mask.hides else shown)
    graph = program.graph
    if mask.value != -math.inf and mask.dtype != scores.query.meta["val"].dtype:
        return "the mask has another dtype than the query"
    if mask.value != -math.inf and mask.dtype is torch.float16:
        return "a row without keys is rounded in float16"
    other = insert_call(graph, before, aten.logical_not.default, (mask.mask,))
    hides, shows = (mask.mask, other) if mask.hides else (other, mask.mask)
    if mask.value == -math.inf:
        return Masking(shows, insert_call(graph, before, aten.all.dim, (hides, -1, True)))
    zeros = insert_call(graph, before, aten.zeros_like.default, (hides,), {"dtype": mask.dtype})
    return Masking(insert_call(graph, before, aten.masked_fill.Scalar, (zeros, hides, mask.value)))


def _constant(program: ExportedProgram, mask: fx.Node, shown: Tensor) -> fx.Node:
    return add_constant(program, f"shown_{mask.name}", shown)


def _is_finite(node: object, known: Mapping[str, Tensor]) -> bool:
    """Whether the value can be seen to hold no infinity: a choice between finite numbers."""
    if isinstance(node, int | float):
        return math.isfinite(node)
    if not isinstance(node, fx.Node):
        return False
    if node.name in known:
        return bool(known[node.name].isfinite().all())
    if node.target in _ZEROS:
        return True
    if node.target in _CHOICES:
        return all(_is_finite(value, known) for value in node.args[1:3])
    return node.target in _VIEWS and _is_finite(node.args[0], known)
