"""RMSNorm written out, of x or of x + residual, weighted by w (Llama, T5, Qwen) or 1 + w (Gemma).

Casts may stand anywhere: the matcher looks through them, and the kernel applies those that are
there.
"""

from __future__ import annotations

from typing import Any, cast

import torch

from fusion_kernels.rule import FusionRule, Match, Variant

_TENSOR, _VECTOR = (4, 8), (8,)
_EPS = 1.2345678e-5


def _normed(x: Any, eps: float) -> Any:
    """x / sqrt(mean(x^2) + eps) over the last dimension."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def _add_rms_norm(x: Any, residual: Any, weight: Any, eps: float) -> Any:
    return weight * _normed(x + residual, eps)


def _rms_norm(x: Any, weight: Any, eps: float) -> Any:
    return weight * _normed(x, eps)


def _add_rms_norm_plus_one(x: Any, residual: Any, weight: Any, eps: float) -> Any:
    return _normed(x + residual, eps) * (1.0 + weight)


def _rms_norm_plus_one(x: Any, weight: Any, eps: float) -> Any:
    return _normed(x, eps) * (1.0 + weight)


def _check(match: Match) -> str | None:
    (mean,) = (n for n in match.nodes if n.target == torch.ops.aten.mean.dim)
    source, given, *rest = cast(tuple[Any, ...], mean.args)
    rank = source.meta["val"].dim()
    dims = [dim % rank for dim in given]
    if dims != [rank - 1] or not (rest and rest[0]):
        return f"the mean is over dimensions {dims} of {rank}, not over the last one, kept"
    target = tuple(match.root.meta["val"].shape)
    if match.shape("weight") != target[-1:]:
        return f"the weight of shape {match.shape('weight')} is not one value a column"
    shapes = [match.shape(name) for name in ("x", "residual") if name in match.bindings]
    return None if target in shapes else f"x of shape {shapes[0]} is broadcast to {target}"


_NUMBERS: dict[str, tuple[int, ...] | float] = {"weight": _VECTOR, "eps": _EPS}
_SUM = {"x": _TENSOR, "residual": _TENSOR, **_NUMBERS}
_ONE = {"x": _TENSOR, **_NUMBERS}

RULE = FusionRule(
    "rms_norm",
    (
        Variant("add_rms_norm_plus_one", _add_rms_norm_plus_one, _SUM),
        Variant("rms_norm_plus_one", _rms_norm_plus_one, _ONE),
        Variant("add_rms_norm", _add_rms_norm, _SUM),
        Variant("rms_norm", _rms_norm, _ONE),
    ),
    _check,
)
