"""GELU(x [+ bias]) [+ residual], at least one of the two additions, in the erf and the tanh
form.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch.nn.functional import gelu

from fusion_kernels.rule import FusionRule, Match, Variant, broadcasts_into

_TENSOR, _VECTOR = (4, 8), (8,)


def _bias_gelu_residual(x: Any, bias: Any, residual: Any, *, approximate: str) -> Any:
    return gelu(x + bias, approximate=approximate) + residual


def _gelu_residual(x: Any, residual: Any, *, approximate: str) -> Any:
    return gelu(x, approximate=approximate) + residual


def _bias_gelu(x: Any, bias: Any, *, approximate: str) -> Any:
    return gelu(x + bias, approximate=approximate)


def _check(match: Match) -> str | None:
    target = tuple(match.root.meta["val"].shape)
    if match.shape("x") != target:
        return f"x of shape {match.shape('x')} is broadcast to {target}"
    if "bias" in match.bindings and match.shape("bias") != target[-1:]:
        return f"the bias of shape {match.shape('bias')} is not one value a column"
    if "residual" in match.bindings and not broadcasts_into(match.shape("residual"), target):
        return f"the residual of shape {match.shape('residual')} does not broadcast to {target}"
    return None


def _variants(approximate: str, suffix: str) -> tuple[Variant, ...]:
    return (
        Variant(
            f"bias_gelu{suffix}_residual",
            partial(_bias_gelu_residual, approximate=approximate),
            {"x": _TENSOR, "bias": _VECTOR, "residual": _TENSOR},
        ),
        Variant(
            f"gelu{suffix}_residual",
            partial(_gelu_residual, approximate=approximate),
            {"x": _TENSOR, "residual": _TENSOR},
        ),
        Variant(
            f"bias_gelu{suffix}",
            partial(_bias_gelu, approximate=approximate),
            {"x": _TENSOR, "bias": _VECTOR},
        ),
    )


RULE = FusionRule("gelu_residual", (*_variants("none", ""), *_variants("tanh", "_tanh")), _check)
