"""The named rules, in the order they are tried."""

from __future__ import annotations

from fusion_kernels.rule import FusionRule
from fusion_kernels.rules import (
    add_layer_norm,
    gated_activation,
    gelu_residual,
    rms_norm,
    rope,
)

RULES: tuple[FusionRule, ...] = (
    add_layer_norm.RULE,
    rms_norm.RULE,
    gelu_residual.RULE,
    gated_activation.RULE,
    rope.RULE,
)
