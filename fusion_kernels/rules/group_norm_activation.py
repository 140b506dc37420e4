"""SiLU(GroupNorm(x)), also of x + shift: a residual, or one value a channel of each sample (the
time embedding of a diffusion model's block).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch.nn.functional import group_norm, silu

from fusion_kernels.rule import FusionRule, Match, Variant, broadcasts_into
from fusion_kernels.rules import written

_Examples = dict[str, tuple[int, ...] | float]
_AFFINE: _Examples = {"norm_weight": (8,), "norm_bias": (8,)}
_X: _Examples = {"x": (4, 8, 16), **_AFFINE, "eps": 1.2345678e-5}
_SUM: _Examples = {**_X, "shift": (4, 8, 1)}
_FORMS = (silu, written.silu)


def _group_norm_silu(
    x: Any, norm_weight: Any, norm_bias: Any, eps: float, *, form: Callable[[Any], Any]
) -> Any:
    return form(group_norm(x, 2, norm_weight, norm_bias, eps))


def _add_group_norm_silu(
    x: Any, shift: Any, norm_weight: Any, norm_bias: Any, eps: float, *, form: Callable[[Any], Any]
) -> Any:
    return form(group_norm(x + shift, 2, norm_weight, norm_bias, eps))


def _check(match: Match) -> str | None:
    target = tuple(match.root.meta["val"].shape)
    if match.shape("x") != target:
        return f"x of shape {match.shape('x')} is broadcast to {target}"
    if "shift" in match.bindings and not broadcasts_into(match.shape("shift"), target):
        return f"the shift of shape {match.shape('shift')} does not broadcast to {target}"
    return None


def _variant(name: str, function: Callable[..., Any], examples: _Examples) -> Variant:
    pattern, *spellings = (partial(function, form=form) for form in _FORMS)
    return Variant(name, pattern, examples, frozenset(_AFFINE), spellings=tuple(spellings))


RULE = FusionRule(
    "group_norm_activation",
    (
        _variant("add_group_norm_silu", _add_group_norm_silu, _SUM),
        _variant("group_norm_silu", _group_norm_silu, _X),
    ),
    _check,
)
