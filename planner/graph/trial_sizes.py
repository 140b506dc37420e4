"""Which other sizes a program with open ones is tried at: the ends of its ranges, one, and ragged
ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy
import torch
from torch import nn
from torch.utils import _pytree as pytree

from planner.graph.open_example import Call, resized
from planner.graph.open_sizes import OpenSizes, Sizes
from planner.graph.twin import clone_inputs, twin_of


def trial_calls(
    eager: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], found: OpenSizes
) -> tuple[tuple[str, Call], ...]:
    """The call at other sizes than its own, each with its sizes in words: those within the ranges
    that eager takes. An upper end beyond twice the example is not tried: it may be as good as
    none.
    """
    own = found.sizes_of(pytree.tree_leaves((tuple(args), dict(kwargs))))
    assert not isinstance(own, str), own
    calls: dict[str, Call] = {}
    for sizes in _spread(found, own):
        call = resized(args, kwargs, found, sizes)
        words = " x ".join(str(size) for size in sizes.values())
        fits = not isinstance(found.sizes_of(pytree.tree_leaves(call)), str)
        if sizes != own and words not in calls and fits and _runs(eager, call):
            calls[words] = call
    return tuple(calls.items())


def _spread(found: OpenSizes, own: Sizes) -> list[dict[sympy.Symbol, int]]:
    lowest = {s: _within(found, s, 0) for s in found.ranges}
    one = {s: _within(found, s, 1) for s in found.ranges}
    less = {s: _within(found, s, own[s] - 1 - own[s] % 2) for s in found.ranges}
    more = {s: _within(found, s, own[s] + own[s] // 2 + 1) for s in found.ranges}
    alone = [{**own, s: one[s]} for s in found.ranges] if len(found.ranges) > 1 else []
    return [less, more, *alone, one, lowest]


def _within(found: OpenSizes, symbol: sympy.Symbol, size: int) -> int:
    low, high = found.ranges[symbol]
    return max(low, size if high is None else min(size, high))


def _runs(eager: nn.Module, call: Call) -> bool:
    """Whether eager takes it: a table of positions may end before the range does."""
    args, kwargs = clone_inputs(call)
    try:
        with torch.no_grad(), torch.random.fork_rng():
            twin_of(eager)(*args, **kwargs)
    except Exception:
        return False
    return True
