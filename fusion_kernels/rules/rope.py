"""Rotary embedding of a row's pairs by angles: x cos + rotated(x) sin.

The pairs are a row's halves, cat(-second half, first half) (Llama), or neighbours, odd and even
columns interleaved again after the rotation (GPT-J, Cohere).
"""

from __future__ import annotations

from typing import Any

import torch

from fusion_kernels.rule import FusionRule, Match, Variant

_WHOLE, _HALF = (4, 8), (4, 4)


def _rope(x: Any, first: Any, second: Any, cos: Any, sin: Any) -> Any:
    return x * cos + torch.cat((-second, first), -1) * sin


def _rope_interleaved(x: Any, first: Any, second: Any, cos: Any, sin: Any) -> Any:
    return x * cos + torch.stack((-second, first), -1).flatten(-2) * sin


def _check(match: Match) -> str | None:
    x = match.bindings["x"]
    width = match.shape("x")[-1]
    if match.variant == "rope":
        places = {"first": (0, 1, "half"), "second": (width // 2, 1, "half")}
    else:
        places = {"first": (0, 2, "set of columns"), "second": (1, 2, "set of columns")}
    for name, (start, step, what) in places.items():
        if not _is_slice(match.bindings[name], x, start, step, width // 2):
            return f"'{name}' is not that {what} of x"
    if tuple(match.root.meta["val"].shape) != match.shape("x"):
        return f"x of shape {match.shape('x')} is broadcast by the angles"
    return None


def _is_slice(node: Any, x: Any, start: int, step: int, size: int) -> bool:
    """Whether `node` is the `size` columns of x that begin at `start`, `step` apart."""
    value, whole = node.meta["val"], x.meta["val"]
    if node.target != torch.ops.aten.slice.Tensor or node.args[0] is not x:
        return False
    given = dict(zip(("dim", "start", "end", "step"), node.args[1:], strict=False))
    dim, begin = given.get("dim", 0) % whole.dim(), given.get("start") or 0
    fits = begin == start and given.get("step", 1) == step
    return dim == whole.dim() - 1 and fits and value.shape[-1] == size


_EXAMPLES: dict[str, tuple[int, ...] | float] = {
    "x": _WHOLE,
    "first": _HALF,
    "second": _HALF,
    "cos": _WHOLE,
    "sin": _WHOLE,
}

RULE = FusionRule(
    "rope",
    (
        Variant("rope", _rope, _EXAMPLES),
        Variant("rope_interleaved", _rope_interleaved, _EXAMPLES),
    ),
    _check,
)
