"""Which values of a graph change their strides when some do, found before anything is changed."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

from planner.passes.noops import same_meta


def restrided(graph: fx.Graph, seeds: Mapping[fx.Node, Tensor]) -> dict[fx.Node, Any] | str:
    """The (fake) values that nodes have once those of `seeds` have other strides: `seeds` and
    what changes because of them.

    A text is the reason against it: an operator refuses the strides, or an output would have
    others.
    """
    values: dict[fx.Node, Any] = dict(seeds)

    def now(node: fx.Node) -> Any:
        return values.get(node, node.meta.get("val"))

    for node in graph.nodes:
        if node in seeds or not any(source in values for source in node.all_input_nodes):
            continue
        if node.op == "output":
            return "an output would have other strides"
        if node.target is not operator.getitem and not isinstance(
            node.target, torch._ops.OpOverload
        ):
            return f"{node.name} is not known to take other strides"
        args, kwargs = fx.map_arg((node.args, node.kwargs), now)
        try:
            with torch.no_grad():
                value = node.target(*args, **kwargs)
        except (RuntimeError, ValueError):
            return f"{node.name} does not take other strides"
        if not _same(value, now(node)):
            values[node] = value
    return values


def _same(value: Any, before: Any) -> bool:
    if isinstance(value, Tensor):
        return same_meta(value, before)
    if isinstance(value, list | tuple):
        return all(map(_same, value, before))
    return True
