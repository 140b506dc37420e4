"""Removes pairs of operators that undo or repeat one another: casts that lose nothing and come
back, transposes of transposes, views of views.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from planner.passes.aliasing import keeps_apart
from planner.passes.noops import same_meta, same_sizes

aten = torch.ops.aten

_INTEGERS = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}

_CASTS = {aten._to_copy.default}
_PERMUTES = {aten.permute.default, aten.transpose.int, aten.t.default}
# Keep the order of the elements. The last two copy where no view can hold the result.
_RESHAPES = {
    aten.view.default,
    aten._unsafe_view.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.squeeze.default,
    aten.unflatten.int,
    aten.reshape.default,
    aten.flatten.using_ints,
}
_Rule = Callable[[fx.Graph, fx.Node], bool]


def cancel_pairs(program: ExportedProgram) -> tuple[str, ...]:
    """Replace the second of two operators by what both together are: nothing, or one operator.

    - A cast that only widens, followed by one back to the dtype it came from, is nothing. Followed
      by another cast, and read by nothing else, it is left out.
    - Two permutations are one; two reshapes of a contiguous tensor are one; where the result is
      the tensor that they started from, they are nothing.

    A copy that keeps two of the caller's tensors apart stays. Sizes that are symbols are taken for
    equal only where they are so for every value.
    """
    done: Counter[str] = Counter()
    for node in list(program.graph.nodes):
        for name, (targets, rule) in _RULES.items():
            # Again and again: with one pair gone, the next may stand behind it.
            while _is_pair(node, targets) and rule(program.graph, node):
                done[name] += 1
    return tuple(f"{count} {name}" for name, count in sorted(done.items()))


def _is_pair(node: fx.Node, targets: set[Any]) -> bool:
    first = node.args[0] if node.target in targets and node.args else None
    return (
        isinstance(first, fx.Node)
        and bool(node.users)
        and first.target in targets
        and isinstance(first.args[0], fx.Node)
        and all(isinstance(n.meta.get("val"), Tensor) for n in (node, first, first.args[0]))
    )


def _cancel_casts(graph: fx.Graph, node: fx.Node) -> bool:
    first: Any = node.args[0]
    source = first.args[0]
    own, between, result = (n.meta["val"] for n in (source, first, node))
    if not keeps_every_value(own.dtype, between.dtype) or not _only_casts(first, node):
        return False
    if same_meta(own, result):
        return not keeps_apart(node, source) and _becomes(graph, node, source)
    if list(first.users) != [node] or not same_sizes(own.stride(), between.stride()):
        return False
    node.replace_input_with(first, source)
    graph.erase_node(first)
    return True


def keeps_every_value(narrow: torch.dtype, wide: torch.dtype) -> bool:
    """Whether a cast from `narrow` to `wide` loses nothing, so that casting back gives the same
    values. Only asked of bool, the common integers and the floats of 16 bits or more.
    """
    if narrow is torch.bool:
        return wide in _INTEGERS | _FLOATS
    if narrow in _INTEGERS and wide in _INTEGERS:
        few, many = torch.iinfo(narrow), torch.iinfo(wide)
        return many.min <= few.min and few.max <= many.max
    if narrow in _INTEGERS and wide in _FLOATS:
        # Every whole number up to 2 / eps is a float.
        return torch.iinfo(narrow).max + 1 <= 2 / torch.finfo(wide).eps
    if narrow in _FLOATS and wide in _FLOATS:
        less, more = torch.finfo(narrow), torch.finfo(wide)
        least, finest = (info.smallest_normal * info.eps for info in (less, more))
        return more.eps <= less.eps and more.max >= less.max and finest <= least
    return False


def _only_casts(*nodes: fx.Node) -> bool:
    """Neither moves the tensor nor asks for other strides."""
    devices = {
        value.meta["val"].device for node in nodes for value in (node, *node.all_input_nodes)
    }
    given = {name for node in nodes for name, value in node.kwargs.items() if value is not None}
    return len(devices) == 1 and given <= {"dtype", "device", "layout", "pin_memory"}


def _compose_permutes(graph: fx.Graph, node: fx.Node) -> bool:
    first: Any = node.args[0]
    source = first.args[0]
    inner, outer = _order(first), _order(node)
    order = [inner[position] for position in outer]
    if order == sorted(order):
        return _becomes(graph, node, source)
    if list(first.users) != [node]:
        return False
    return _reads(graph, node, aten.permute.default, (source, order))


def _order(node: fx.Node) -> list[int]:
    """Which dimension of its input stands at each place of the result."""
    rank = node.meta["val"].ndim
    order = list(range(rank))
    if node.target is aten.permute.default:
        dims: Any = node.args[1]
        return [dim % rank for dim in dims]
    if rank < 2:
        return order
    pair: Any = node.args[1:3] if node.target is aten.transpose.int else (0, 1)
    left, right = (dim % rank for dim in pair)
    order[left], order[right] = order[right], order[left]
    return order


def _compose_reshapes(graph: fx.Graph, node: fx.Node) -> bool:
    first: Any = node.args[0]
    source = first.args[0]
    own, result = source.meta["val"], node.meta["val"]
    if same_meta(own, result):
        return not keeps_apart(node, source) and _becomes(graph, node, source)
    fixed = all(isinstance(size, int) for size in (*own.shape, *result.shape))
    if list(first.users) != [node] or not fixed or not own.is_contiguous():
        return False
    if own.view(result.shape).stride() != result.stride():
        return False
    return _reads(graph, node, aten.view.default, (source, list(result.shape)))


def _becomes(graph: fx.Graph, node: fx.Node, source: Any) -> bool:
    node.replace_all_uses_with(source)
    graph.erase_node(node)
    return True


def _reads(graph: fx.Graph, node: fx.Node, target: Any, args: tuple[Any, ...]) -> bool:
    """Let `node`, the only reader of what it read, be another call."""
    (first,) = node.all_input_nodes
    node.target, node.args, node.kwargs = target, args, {}
    graph.erase_node(first)
    return True


_RULES: dict[str, tuple[set[Any], _Rule]] = {
    "pairs of casts that lose nothing": (_CASTS, _cancel_casts),
    "pairs of transposes": (_PERMUTES, _compose_permutes),
    "pairs of views": (_RESHAPES, _compose_reshapes),
}
