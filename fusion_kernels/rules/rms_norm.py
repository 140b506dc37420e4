"""RMSNorm written out, of x or of x + residual, weighted by w (Llama, T5, Qwen), by 1 + w (Gemma)
or by nothing.

Casts may stand anywhere: the matcher looks through them, and the kernel applies those that are
there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from fusion_kernels.rule import FusionRule, Match, Variant, not_over_the_last
from fusion_kernels.rules.written import (
    rms_normed,
    rms_normed_by_power,
    rms_normed_by_root,
)

_TENSOR, _VECTOR = (4, 8), (8,)
_EPS = 1.2345678e-5
_FORMS = (rms_normed, rms_normed_by_power, rms_normed_by_root)
_Norm = Callable[[Any, float], Any]


def _add_rms_norm(x: Any, residual: Any, weight: Any, eps: float, *, norm: _Norm) -> Any:
    return weight * norm(x + residual, eps)


def _rms_norm(x: Any, weight: Any, eps: float, *, norm: _Norm) -> Any:
    return weight * norm(x, eps)


def _add_rms_norm_plus_one(x: Any, residual: Any, weight: Any, eps: float, *, norm: _Norm) -> Any:
    return norm(x + residual, eps) * (1.0 + weight)


def _rms_norm_plus_one(x: Any, weight: Any, eps: float, *, norm: _Norm) -> Any:
    return norm(x, eps) * (1.0 + weight)


def _unweighted_rms_norm(x: Any, eps: float, *, norm: _Norm) -> Any:
    return norm(x, eps)


def _check(match: Match) -> str | None:
    reason = not_over_the_last(match, torch.ops.aten.mean.dim)
    if reason:
        return reason
    target = tuple(match.root.meta["val"].shape)
    if "weight" in match.bindings and match.shape("weight") != target[-1:]:
        return f"the weight of shape {match.shape('weight')} is not one value a column"
    shapes = [match.shape(name) for name in ("x", "residual") if name in match.bindings]
    return None if target in shapes else f"x of shape {shapes[0]} is broadcast to {target}"


_X: dict[str, tuple[int, ...] | float] = {"x": _TENSOR, "eps": _EPS}
_ONE = {**_X, "weight": _VECTOR}
_SUM = {**_ONE, "residual": _TENSOR}


def _variant(
    name: str, function: Callable[..., Any], examples: dict[str, tuple[int, ...] | float]
) -> Variant:
    pattern, *spellings = (partial(function, norm=norm) for norm in _FORMS)
    return Variant(name, pattern, examples, spellings=tuple(spellings))


RULE = FusionRule(
    "rms_norm",
    (
        _variant("add_rms_norm_plus_one", _add_rms_norm_plus_one, _SUM),
        _variant("rms_norm_plus_one", _rms_norm_plus_one, _ONE),
        _variant("add_rms_norm", _add_rms_norm, _SUM),
        _variant("rms_norm", _rms_norm, _ONE),
        _variant("unweighted_rms_norm", _unweighted_rms_norm, _X),
    ),
    _check,
)
