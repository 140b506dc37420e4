"""Activations written out of several operators: GELU in the erf, the tanh and the sigmoid form,
SiLU, and the square of ReLU. Constants tell the forms apart.
"""

from __future__ import annotations

from typing import Any

import torch

from fusion_kernels.rule import FusionRule, Match, Variant
from fusion_kernels.rules.written import (
    gelu_erf,
    gelu_tanh,
    gelu_tanh_factored,
    quick_gelu,
    silu,
)

_TENSOR: dict[str, tuple[int, ...] | float] = {"x": (4, 8)}


def _relu_squared(x: Any) -> Any:
    return torch.relu(x) ** 2


def _clamp_squared(x: Any) -> Any:
    return torch.clamp(x, min=0) ** 2


def _clamp_min_squared(x: Any) -> Any:
    return torch.clamp_min(x, 0) ** 2


def _any(_match: Match) -> str | None:
    return None


RULE = FusionRule(
    "written_activation",
    (
        Variant("gelu_tanh", gelu_tanh, _TENSOR, spellings=(gelu_tanh_factored,)),
        Variant("gelu_erf", gelu_erf, _TENSOR),
        Variant("quick_gelu", quick_gelu, _TENSOR),
        Variant("silu", silu, _TENSOR),
        Variant(
            "relu_squared",
            _relu_squared,
            _TENSOR,
            spellings=(_clamp_squared, _clamp_min_squared),
        ),
    ),
    _any,
)
