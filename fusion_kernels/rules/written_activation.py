"""Activations written out of several operators: SiLU, and GELU in the erf, the tanh and the
sigmoid form. Constants tell them apart.
"""

from __future__ import annotations

from fusion_kernels.rule import FusionRule, Match, Variant
from fusion_kernels.rules.written import (
    gelu_erf,
    gelu_tanh,
    gelu_tanh_factored,
    quick_gelu,
    silu,
)

_TENSOR: dict[str, tuple[int, ...] | float] = {"x": (4, 8)}


def _any(_match: Match) -> str | None:
    return None


RULE = FusionRule(
    "written_activation",
    (
        Variant("gelu_tanh", gelu_tanh, _TENSOR, spellings=(gelu_tanh_factored,)),
        Variant("gelu_erf", gelu_erf, _TENSOR),
        Variant("quick_gelu", quick_gelu, _TENSOR),
        Variant("silu", silu, _TENSOR),
    ),
    _any,
)
