"""Adds an operator call to a program's graph, with the value that a tracer would have noted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx


def insert_call(
    graph: fx.Graph,
    before: fx.Node,
    target: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
) -> fx.Node:
    """A call of `target` in front of `before`, whose module and source line it takes over."""
    given = dict(kwargs or {})
    with graph.inserting_before(before):
        node: fx.Node = graph.call_function(target, args, given)
    values = fx.map_arg((args, given), lambda source: source.meta["val"])
    with torch.no_grad():
        node.meta = {**before.meta, "val": target(*values[0], **values[1])}
    return node
