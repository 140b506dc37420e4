"""Operators that regions do not hold, as those that they do: one result where there were several,
and composites as what they are made of.

Parts remember what they were (`planner.passes.composites`): where no kernel takes any of them, the
operator comes back.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from fusion_kernels.lowering import POINTWISE
from planner.graph.view import CASTS, op_name
from planner.passes.composites import remember
from planner.passes.insert import insert_call
from planner.passes.noops import same_meta

aten = torch.ops.aten
_HALVES = (torch.bfloat16, torch.float16)

Make = Callable[..., fx.Node]
"""`make(target, *args, **kwargs)` puts a call where the operator stood and returns it."""
Taken = Sequence[fx.Node | None] | None
"""For each result what computes it, None for one that nothing may read; or None: left whole."""


def take_apart(program: ExportedProgram) -> tuple[str, ...]:
    """Bring batch norms, instance norms, var_mean, max over a dimension, aminmax, glu, splits and
    cross entropies to operators that return one tensor and that a region may hold.
    """
    for node in list(program.graph.nodes):
        if op_name(node) == "aten.nll_loss_nd.default":
            _as_cross_entropy(program.graph, node)
    done: Counter[str] = Counter()
    for node in list(program.graph.nodes):
        change = _CHANGES.get(op_name(node))
        if node.op == "call_function" and change is not None and _take(program.graph, node, change):
            done[op_name(node).split(".")[1].strip("_")] += 1
    return tuple(f"{count} x {name} taken apart" for name, count in sorted(done.items()))


def _take(graph: fx.Graph, node: fx.Node, change: Callable[[fx.Node, Make], Taken]) -> bool:
    made: list[fx.Node] = []

    def make(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        made.append(insert_call(graph, node, target, args, kwargs))
        return made[-1]

    parts = change(node, make)
    several = isinstance(node.meta["val"], list | tuple)
    users = list(node.users) if several else [node]
    found = [] if parts is None else [_part(user, parts, several=several) for user in users]
    if parts is None or not all(map(_same_form, users, found)):
        for call in reversed(made):
            graph.erase_node(call)
        return False
    results: list[tuple[fx.Node, Any]] = [
        (part, user.args[1] if several else None)
        for user, part in zip(users, found, strict=True)
        if part is not None
    ]
    for user, (part, _) in zip(users, results, strict=True):
        user.replace_all_uses_with(part)
    for call in reversed(made):
        if not call.users:
            graph.erase_node(call)  # a result that nothing reads
    remember(node, [call for call in made if call.users], results)
    for user in users:
        graph.erase_node(user)
    if several:
        graph.erase_node(node)
    return True


def _part(user: fx.Node, parts: Sequence[fx.Node | None], *, several: bool) -> fx.Node | None:
    if not several:
        return parts[0]
    return parts[user.args[1]] if user.target is operator.getitem else None  # type: ignore[index]


def _same_form(user: fx.Node, part: fx.Node | None) -> bool:
    if part is None:
        return False
    return same_meta(user.meta["val"], part.meta["val"])


def _batch_norm(node: fx.Node, make: Make) -> Taken:
    x, weight, bias, mean, variance, momentum, eps = node.args
    args = (x, weight, bias, mean, variance, False, momentum, eps, False)
    return (make(aten.batch_norm.default, *args), None, None)


def _instance_norm(node: fx.Node, make: Make) -> Taken:
    """Of the input's own statistics: a group norm with one channel a group. One that counts in
    running statistics is left whole.
    """
    x, weight, bias, mean, variance, own, _momentum, eps, *_ = node.args
    if not own or not isinstance(x, fx.Node) or mean is not None or variance is not None:
        return None
    channels = x.meta["val"].shape[1]
    if not isinstance(channels, int):
        return None
    return (make(aten.group_norm.default, x, channels, weight, bias, eps, False),)


def _moments(spread: Any) -> Callable[[fx.Node, Make], Taken]:
    """var_mean and std_mean, of the unbiased form or of one with a correction."""

    def change(node: fx.Node, make: Make) -> Taken:
        given = _completed(node)
        x, dims, keepdim = given["self"], given["dim"], given["keepdim"]
        correction = given["correction"] if "correction" in given else int(given["unbiased"])
        first = make(spread, x, dims, correction=correction, keepdim=keepdim)
        return (first, make(aten.mean.dim, x, dims, keepdim))

    return change


def _extreme(reduce: Any) -> Callable[[fx.Node, Make], Taken]:
    """max and min over a dimension where nothing asks where."""

    def change(node: fx.Node, make: Make) -> Taken:
        x, dim, keepdim = (*node.args, False)[:3]
        return (make(reduce, x, [dim], keepdim), None)

    return change


def _both_extremes(node: fx.Node, make: Make) -> Taken:
    dim, keepdim = node.kwargs.get("dim"), node.kwargs.get("keepdim", False)
    dims = [] if dim is None else [dim]
    x = node.args[0]
    return (make(aten.amin.default, x, dims, keepdim), make(aten.amax.default, x, dims, keepdim))


def _glu(node: fx.Node, make: Make) -> Taken:
    """The first half times the sigmoid of the second."""
    x, dim = (*node.args, -1)[:2]
    if not isinstance(x, fx.Node) or not isinstance(dim, int):
        return None
    half = x.meta["val"].shape[dim] // 2
    if not isinstance(half, int):
        return None
    first = make(aten.slice.Tensor, x, dim, 0, half)
    second = make(aten.slice.Tensor, x, dim, half, 2 * half)
    return (make(aten.mul.Tensor, first, make(aten.sigmoid.default, second)),)


def _stretches(node: fx.Node, make: Make) -> Taken:
    """The parts of a split or chunk as slices, where a kernel may compute what is cut."""
    x, dim = node.args[0], _completed(node)["dim"]
    sizes = [value.shape[dim] for value in node.meta["val"]]
    known = all(isinstance(size, int) for size in sizes)
    if not known or not isinstance(x, fx.Node) or op_name(x) not in POINTWISE:
        return None
    ends = list(itertools.accumulate(sizes))
    starts = [end - size for end, size in zip(ends, sizes, strict=True)]
    bounds = zip(starts, ends, strict=True)
    return [make(aten.slice.Tensor, x, dim, start, end) for start, end in bounds]


def _cross_entropy(node: fx.Node, make: Make) -> Taken:
    """logsumexp(x) - x[target] a row in float32, 0 where the target is to be ignored.

    Of classes in the last of two dimensions, without weights and smoothing. No float32 copy of
    logits of 16 bits is read.
    """
    x, target, weight, reduction, ignored, smoothing = _completed(node).values()
    if not isinstance(x, fx.Node) or not isinstance(target, fx.Node):
        return None
    own, classes = x.meta["val"], target.meta["val"]
    plain = weight is None and not smoothing and own.ndim == 2 and not classes.is_floating_point()
    if not plain or classes.ndim != 1:
        return None
    counted = make(aten.ne.Scalar, target, ignored)
    # What is ignored may lie anywhere outside of the classes; other targets there are errors.
    inside = make(aten.where.ScalarOther, counted, target, 0)
    place = make(aten.unsqueeze.default, inside, 1)
    wide = x if own.dtype == torch.float32 else make(aten._to_copy.default, x, dtype=torch.float32)
    # Of logits that were widened before: the wide ones would have to be stored to be looked up.
    narrow = x.args[0] if _is_widened(x) else x
    picked = make(aten.squeeze.dim, make(aten.gather.default, narrow, 1, place), 1)
    if picked.meta["val"].dtype != torch.float32:
        picked = make(aten._to_copy.default, picked, dtype=torch.float32)
    loss = make(aten.sub.Tensor, make(aten.logsumexp.default, wide, [1]), picked)
    loss = make(aten.where.ScalarOther, counted, loss, 0.0)
    if reduction:
        loss = make(aten.sum.default, loss)
    if reduction == 1:
        loss = make(aten.div.Tensor, loss, make(aten.sum.default, counted))
    return (loss if wide is x else make(aten._to_copy.default, loss, dtype=own.dtype),)


def _is_widened(x: fx.Node) -> bool:
    """Whether the float32 values are those of a tensor of 16 bits."""
    source = x.args[0] if op_name(x) in CASTS and x.args else None
    return isinstance(source, fx.Node) and source.meta["val"].dtype in _HALVES


def _as_cross_entropy(graph: fx.Graph, node: fx.Node) -> None:
    """nll_loss(log_softmax(x, 1), target) as the cross entropy that it is by torch's definition."""
    given, log = _completed(node), node.args[0]
    if not isinstance(log, fx.Node) or op_name(log) != "aten.log_softmax.int":
        return
    x, dim, dtype = (*log.args, log.kwargs.get("dtype"))[:3]
    if not isinstance(x, fx.Node) or len(log.users) > 1 or dim % x.meta["val"].ndim != 1:
        return
    if dtype is not None and dtype != x.meta["val"].dtype:
        x = insert_call(graph, node, aten._to_copy.default, (x,), {"dtype": dtype})
    args = (x, *(given[name] for name in ("target", "weight", "reduction", "ignore_index")))
    node.replace_all_uses_with(insert_call(graph, node, aten.cross_entropy_loss.default, args))
    graph.erase_node(node)
    graph.erase_node(log)


def _completed(node: fx.Node) -> dict[str, Any]:
    """The node's arguments by their schema's names, in its order, defaults filled in."""
    schema: Any = node.target._schema  # type: ignore[union-attr]
    given = dict(zip((a.name for a in schema.arguments), node.args, strict=False)) | node.kwargs
    return {a.name: given.get(a.name, a.default_value) for a in schema.arguments}


_CHANGES: dict[str, Callable[[fx.Node, Make], Taken]] = {
    "aten._native_batch_norm_legit_no_training.default": _batch_norm,
    "aten.instance_norm.default": _instance_norm,
    "aten.var_mean.correction": _moments(aten.var.correction),
    "aten.var_mean.dim": _moments(aten.var.correction),
    "aten.std_mean.correction": _moments(aten.std.correction),
    "aten.std_mean.dim": _moments(aten.std.correction),
    "aten.max.dim": _extreme(aten.amax.default),
    "aten.min.dim": _extreme(aten.amin.default),
    "aten.aminmax.default": _both_extremes,
    "aten.glu.default": _glu,
    "aten.split.Tensor": _stretches,
    "aten.split_with_sizes.default": _stretches,
    "aten.chunk.default": _stretches,
    "aten.cross_entropy_loss.default": _cross_entropy,
}
