"""Turns attention written as matmul, softmax and matmul into one scaled_dot_product_attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from planner.passes.attention_mask import Masking, masking
from planner.passes.attention_scores import PRODUCTS, Scores, scores_of
from planner.passes.insert import insert_call
from planner.passes.known_values import stored_constants
from planner.passes.noops import same_meta

aten = torch.ops.aten

_TURNS = {aten.transpose.int, aten.permute.default}
_SOFTMAX = {aten.softmax.int, aten._softmax.default}
_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_CONTIGUOUS = {"memory_format": torch.contiguous_format}


def written_out_attention(program: ExportedProgram) -> tuple[str, ...]:
    """softmax(q @ k.mT * scale + mask) @ v -> scaled_dot_product_attention(q, k, v).

    Only where nothing else reads scores or probabilities, all shapes are fixed and of equal batch,
    the softmax is over keys, and the mask gives the same rows also where it hides every key. The
    notes give the reason for each that was left.
    """
    done, notes = 0, []
    known = stored_constants(program)
    masks: dict[object, Masking | str] = {}
    for node in list(program.graph.nodes):
        if node.target not in PRODUCTS or _softmax_before(node) is None:
            continue
        reason = _rewrite(program, node, known, masks)
        if reason:
            notes.append(f"{node.name} stays written out: {reason}")
        done += not reason
    return (*((f"{done} attentions became one operator each",) if done else ()), *notes)


def _rewrite(
    program: ExportedProgram,
    product: fx.Node,
    known: dict[str, Tensor],
    masks: dict[object, Masking | str],
) -> str:
    """Replace the attention that ends in `product`; the reason where it must stay. `masks` has
    those of the attentions before it: layers share them.
    """
    softmax = _softmax_before(product)
    assert softmax is not None
    reason = _refused_probabilities(product, softmax)
    scores = scores_of(softmax.args[0], softmax, known)
    if reason or isinstance(scores, str):
        return reason or str(scores)
    value: Any = product.args[1]
    reason = _refused_shapes(scores, value, product)
    if reason:
        return reason
    query_meta = scores.query.meta["val"]
    kind = (scores.mask, query_meta.dtype, query_meta.ndim)
    if kind not in masks:
        masks[kind] = masking(program, scores, known, product)
    found = masks[kind]
    if isinstance(found, str):
        return found
    _insert(program.graph, product, scores, value, found)
    return ""


def _softmax_before(product: fx.Node) -> fx.Node | None:
    """The softmax whose result, perhaps cast, is the product's left side."""
    node = product.args[0] if product.args else None
    while isinstance(node, fx.Node) and (
        node.target is aten._to_copy.default or _is_idle_dropout(node)
    ):
        node = node.args[0]
    return node if isinstance(node, fx.Node) and node.target in _SOFTMAX else None


def _is_idle_dropout(node: fx.Node) -> bool:
    return node.target is aten.dropout.default and 0 in node.args[1:3]  # False is 0


def _refused_probabilities(product: fx.Node, softmax: fx.Node) -> str:
    node, reader = softmax, product
    while reader is not softmax:
        node = reader.args[0]  # type: ignore[assignment]
        if list(node.users) != [reader] or reader.args.count(node) != 1:
            return f"{node.name} is read elsewhere too"
        if node.meta["val"].dtype not in _FLOATS:
            return f"{node.name} is {node.meta['val'].dtype}"
        reader = node
    dim: Any = softmax.args[1]
    if dim not in (-1, softmax.meta["val"].ndim - 1):
        return f"the softmax is over dimension {dim}, not over the keys"
    return ""


def _refused_shapes(scores: Scores, value: Any, product: fx.Node) -> str:
    q, kt, v = (node.meta["val"] for node in (scores.query, scores.key_t, value))
    if any(not isinstance(size, int) for tensor in (q, kt, v) for size in tensor.shape):
        return "a size is open"
    if not q.ndim == kt.ndim == v.ndim or q.ndim not in (3, 4):
        return "query, key and value have not three or four dimensions each"
    if not q.shape[:-2] == kt.shape[:-2] == v.shape[:-2]:
        return "query, key and value differ in batch or heads"
    if 0 in (*q.shape, *kt.shape, *v.shape):
        return "it is empty"
    dtypes = {tensor.dtype for tensor in (q, kt, v, product.meta["val"])}
    if len(dtypes) != 1 or not dtypes <= _FLOATS:
        return "query, key and value differ in dtype"
    return ""


def _insert(
    graph: fx.Graph, product: fx.Node, scores: Scores, value: fx.Node, mask: Masking
) -> None:
    key = _untransposed(graph, product, scores.key_t)
    given = (scores.query, key, value, *((mask.given,) if mask.given is not None else ()))
    out = insert_call(
        graph,
        product,
        aten.scaled_dot_product_attention.default,
        given,
        {"scale": scores.scale},
    )
    if mask.hidden_rows is not None:  # softmax of nothing but -inf is NaN; the operator gives 0
        filled = (out, mask.hidden_rows, float("nan"))
        out = insert_call(graph, product, aten.masked_fill.Scalar, filled)
    if not same_meta(out.meta["val"], product.meta["val"]) and not _copied(product):
        out = insert_call(graph, product, aten.clone.default, (out,), _CONTIGUOUS)
    product.replace_all_uses_with(out)
    graph.erase_node(product)
    _restride(out)


def _untransposed(graph: fx.Graph, before: fx.Node, key_t: fx.Node) -> fx.Node:
    rank = key_t.meta["val"].ndim
    if key_t.target is aten.transpose.int:
        source, *dims = key_t.args
        if isinstance(source, fx.Node) and {dim % rank for dim in dims} == {rank - 2, rank - 1}:
            return source
    return insert_call(graph, before, aten.transpose.int, (key_t, -2, -1))


def _copied(node: fx.Node) -> bool:
    """Whether every way from the node leads through transposes into a contiguous copy, so that no
    one sees its strides.
    """
    return bool(node.users) and all(
        (user.target is aten.clone.default and dict(user.kwargs) == _CONTIGUOUS)
        or (user.target in _TURNS and _copied(user))
        for user in node.users
    )


def _restride(node: fx.Node) -> None:
    """Correct the strides that transposes of `node` are said to have."""
    for user in node.users:
        if user.target in _TURNS:
            target: Any = user.target
            user.meta["val"] = target(node.meta["val"], *user.args[1:])
            _restride(user)
