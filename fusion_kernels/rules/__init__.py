"""The named rules, in the order they are tried: what holds another one comes before it."""

from __future__ import annotations

from fusion_kernels.rule import FusionRule
from fusion_kernels.rules import (
    add_layer_norm,
    cross_entropy,
    dynamic_tanh,
    embedding_layer_norm,
    gated_activation,
    gelu_residual,
    group_norm_activation,
    l2_norm,
    masked_softmax,
    modulated_norm,
    permuted_layer_norm,
    relu_squared,
    rms_norm,
    rope,
    scaled_residual,
    softcap,
    written_activation,
)

RULES: tuple[FusionRule, ...] = (
    modulated_norm.RULE,
    permuted_layer_norm.RULE,
    group_norm_activation.RULE,
    embedding_layer_norm.RULE,
    add_layer_norm.RULE,
    rms_norm.RULE,
    l2_norm.RULE,
    cross_entropy.RULE,
    gelu_residual.RULE,
    relu_squared.RULE,
    gated_activation.RULE,
    rope.RULE,
    masked_softmax.RULE,
    softcap.RULE,
    written_activation.RULE,
    dynamic_tanh.RULE,
    scaled_residual.RULE,
)
