"""Rotary embedding of the half-split form: x cos + cat(-second half, first half) sin."""

from __future__ import annotations

from typing import Any

import torch

from fusion_kernels.rule import FusionRule, Match, Variant

_WHOLE, _HALF = (4, 8), (4, 4)


def _rope(x: Any, first: Any, second: Any, cos: Any, sin: Any) -> Any:
    return x * cos + torch.cat((-second, first), -1) * sin


def _check(match: Match) -> str | None:
    x = match.bindings["x"]
    width = match.shape("x")[-1]
    for name, start in (("first", 0), ("second", width // 2)):
        if not _is_slice(match.bindings[name], x, start, width // 2):
            return f"'{name}' is not that half of x"
    if tuple(match.root.meta["val"].shape) != match.shape("x"):
        return f"x of shape {match.shape('x')} is broadcast by the angles"
    return None


def _is_slice(node: Any, x: Any, start: int, size: int) -> bool:
    """Whether `node` is x[..., start : start + size]."""
    value, whole = node.meta["val"], x.meta["val"]
    if node.target != torch.ops.aten.slice.Tensor or node.args[0] is not x:
        return False
    dim = node.args[1] if len(node.args) > 1 else 0
    begin = node.args[2] if len(node.args) > 2 else 0
    return dim % whole.dim() == whole.dim() - 1 and begin == start and value.shape[-1] == size


RULE = FusionRule(
    "rope",
    (
        Variant(
            "rope",
            _rope,
            {"x": _WHOLE, "first": _HALF, "second": _HALF, "cos": _WHOLE, "sin": _WHOLE},
        ),
    ),
    _check,
)
