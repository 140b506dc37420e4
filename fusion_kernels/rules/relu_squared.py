"""The square of ReLU (Primer, Nemotron, RWKV)."""

from __future__ import annotations

from typing import Any

import torch

from fusion_kernels.rule import FusionRule, Match, Variant


def _relu_squared(x: Any) -> Any:
    return torch.relu(x) ** 2


def _clamp_min_squared(x: Any) -> Any:
    return torch.clamp_min(x, 0) ** 2


def _any(_match: Match) -> str | None:
    return None


RULE = FusionRule(
    "relu_squared",
    (
        Variant(
            "relu_squared",
            _relu_squared,
            {"x": (4, 8)},
            spellings=(_clamp_min_squared,),
        ),
    ),
    _any,
)
