"""norm(x) * (1 + scale) + shift with a scale and a shift made from a condition (AdaLN, DiT): a
LayerNorm, also of a sum or of a gated one (x + residual, residual + gate * x), or an RMSNorm.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import layer_norm

from fusion_kernels.rule import FusionRule, Match, Variant, broadcasts_into, not_over_the_last
from fusion_kernels.rules.written import rms_normed

_TENSOR, _CONDITION, _VECTOR, _EPS = (4, 8), (4, 1, 8), (8,), 1.2345678e-5


def _modulated(x: Any, scale: Any, shift: Any, eps: float) -> Any:
    return layer_norm(x, x.shape[-1:], eps=eps) * (1.0 + scale) + shift


def _modulated_affine(
    x: Any, scale: Any, shift: Any, norm_weight: Any, norm_bias: Any, eps: float
) -> Any:
    normed = layer_norm(x, norm_weight.shape, norm_weight, norm_bias, eps)
    return normed * (1.0 + scale) + shift


def _add_modulated(x: Any, residual: Any, scale: Any, shift: Any, eps: float) -> Any:
    return _modulated(x + residual, scale, shift, eps)


def _gated_add_modulated(
    x: Any, gate: Any, residual: Any, scale: Any, shift: Any, eps: float
) -> Any:
    return _modulated(residual + gate * x, scale, shift, eps)


def _modulated_rms(x: Any, scale: Any, shift: Any, eps: float) -> Any:
    return rms_normed(x, eps) * (1.0 + scale) + shift


def _modulated_weighted_rms(x: Any, scale: Any, shift: Any, weight: Any, eps: float) -> Any:
    return rms_normed(x, eps) * weight * (1.0 + scale) + shift


def _check(match: Match) -> str | None:
    """Scale and shift come from one condition and have one shape: the weight of a norm whose
    result is added to a residual (Gemma 2) is no condition.
    """
    if match.shape("scale") != match.shape("shift"):
        return ""
    if any(node.target == torch.ops.aten.mean.dim for node in match.nodes):
        reason = not_over_the_last(match, torch.ops.aten.mean.dim)
        if reason:
            return reason
    target = tuple(match.root.meta["val"].shape)
    if match.shape("x") != target:
        return f"x of shape {match.shape('x')} is broadcast to {target}"
    for name in ("scale", "shift", "gate", "residual"):
        if name in match.bindings and not broadcasts_into(match.shape(name), target):
            return f"the {name} of shape {match.shape(name)} does not broadcast to {target}"
    return None


_CONDITIONS: dict[str, tuple[int, ...] | float] = {
    "scale": _CONDITION,
    "shift": _CONDITION,
    "eps": _EPS,
}
_SUM: dict[str, tuple[int, ...] | float] = {"x": _TENSOR, "residual": _TENSOR}
_AFFINE: dict[str, tuple[int, ...] | float] = {"norm_weight": _VECTOR, "norm_bias": _VECTOR}

RULE = FusionRule(
    "modulated_norm",
    (
        Variant(
            "gated_add_modulated_layer_norm",
            _gated_add_modulated,
            {**_SUM, "gate": _CONDITION, **_CONDITIONS},
        ),
        Variant("add_modulated_layer_norm", _add_modulated, {**_SUM, **_CONDITIONS}),
        Variant(
            "modulated_layer_norm",
            _modulated,
            {"x": _TENSOR, **_CONDITIONS, **_AFFINE},
            frozenset(_AFFINE),
            spellings=(_modulated_affine,),
        ),
        Variant(
            "modulated_rms_norm",
            _modulated_rms,
            {"x": _TENSOR, **_CONDITIONS, "weight": _VECTOR},
            spellings=(_modulated_weighted_rms,),
        ),
    ),
    _check,
)
