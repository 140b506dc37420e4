"""LayerNorm(x [+ bias] [+ residual]), at least one of the two additions, and LayerNorm of a
residual and a layer-scaled x.
"""

from __future__ import annotations

from typing import Any

from torch.nn.functional import layer_norm

from fusion_kernels.rule import FusionRule, Match, Variant

_TENSOR, _VECTOR = (4, 8), (8,)
_EPS = 1.2345678e-5
_NORM: dict[str, tuple[int, ...] | float] = {
    "norm_weight": _VECTOR,
    "norm_bias": _VECTOR,
    "eps": _EPS,
}
_OPTIONAL = frozenset({"norm_weight", "norm_bias"})


def _bias_add_layer_norm(
    x: Any, bias: Any, residual: Any, norm_weight: Any, norm_bias: Any, eps: float
) -> Any:
    return layer_norm((x + bias) + residual, norm_weight.shape, norm_weight, norm_bias, eps)


def _layer_scale_add_layer_norm(
    x: Any, scale: Any, residual: Any, norm_weight: Any, norm_bias: Any, eps: float
) -> Any:
    return layer_norm(residual + scale * x, norm_weight.shape, norm_weight, norm_bias, eps)


def _add_layer_norm(x: Any, residual: Any, norm_weight: Any, norm_bias: Any, eps: float) -> Any:
    return layer_norm(x + residual, norm_weight.shape, norm_weight, norm_bias, eps)


def _check(match: Match) -> str | None:
    """Either side of the addition may be the smaller one, as position embeddings are."""
    target = tuple(match.root.meta["val"].shape)
    x, residual = match.shape("x"), match.shape("residual")
    if target not in (x, residual):
        return f"x of shape {x} and the residual of shape {residual} are both broadcast to {target}"
    for name in ("bias", "scale"):
        if name in match.bindings and match.shape(name) != target[-1:]:
            return f"the {name} of shape {match.shape(name)} is not one value a column"
    return None


RULE = FusionRule(
    "add_layer_norm",
    (
        Variant(
            "bias_add_layer_norm",
            _bias_add_layer_norm,
            {"x": _TENSOR, "bias": _VECTOR, "residual": _TENSOR, **_NORM},
            _OPTIONAL,
        ),
        Variant(
            "layer_scale_add_layer_norm",
            _layer_scale_add_layer_norm,
            {"x": _TENSOR, "scale": _VECTOR, "residual": _TENSOR, **_NORM},
            _OPTIONAL,
        ),
        Variant(
            "add_layer_norm",
            _add_layer_norm,
            {"x": _TENSOR, "residual": _TENSOR, **_NORM},
            _OPTIONAL,
        ),
    ),
    _check,
)
