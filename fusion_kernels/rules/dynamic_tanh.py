"""Dynamic tanh (DyT, Zhu et al. 2025), which stands for a norm: weight * tanh(alpha * x) + bias."""

from __future__ import annotations

import math
from typing import Any

import torch

from fusion_kernels.rule import FusionRule, Match, Variant


def _dynamic_tanh(x: Any, alpha: Any, weight: Any, bias: Any) -> Any:
    return weight * torch.tanh(alpha * x) + bias


def _check(match: Match) -> str | None:
    target = tuple(match.root.meta["val"].shape)
    alpha = match.shape("alpha")
    if math.prod(alpha) != 1:
        return f"alpha of shape {alpha} is not one value"
    for name in ("weight", "bias"):
        if match.shape(name) != target[-1:]:
            return f"the {name} of shape {match.shape(name)} is not one value a column"
    return None if match.shape("x") == target else f"x of shape {match.shape('x')} is broadcast"


RULE = FusionRule(
    "dynamic_tanh",
    (
        Variant(
            "dynamic_tanh",
            _dynamic_tanh,
            {"x": (4, 8), "alpha": (1, 1), "weight": (8,), "bias": (8,)},
        ),
    ),
    _check,
)
