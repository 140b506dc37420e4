"""x divided by its length along the last dimension: with an eps in the root (linear attention of
Qwen3-Next and Kimi), or without (the embeddings of CLIP).
"""

from __future__ import annotations

from typing import Any

import torch

from fusion_kernels.rule import FusionRule, Match, Variant, not_over_the_last

_TENSOR = (4, 8)


def _l2_norm(x: Any, eps: float) -> Any:
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + eps)


def _l2_norm_by_root(x: Any, eps: float) -> Any:
    return x / torch.sqrt(x.pow(2).sum(-1, keepdim=True) + eps)


def _unit_norm(x: Any) -> Any:
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)


def _unit_norm_by_root(x: Any) -> Any:
    return x / torch.sqrt(x.pow(2).sum(-1, keepdim=True))


def _unit_norm_by_power(x: Any) -> Any:
    return x / x.pow(2).sum(-1, keepdim=True).pow(0.5)


def _check(match: Match) -> str | None:
    if any(node.target == torch.ops.aten.sum.dim_IntList for node in match.nodes):
        return not_over_the_last(match, torch.ops.aten.sum.dim_IntList)
    (norm,) = (n for n in match.nodes if n.target == torch.ops.aten.linalg_vector_norm.default)
    shape = match.shape("x")
    if tuple(norm.meta["val"].shape) != (*shape[:-1], 1):
        return "the norm is not over the last dimension, kept"
    return None


RULE = FusionRule(
    "l2_norm",
    (
        Variant(
            "l2_norm",
            _l2_norm,
            {"x": _TENSOR, "eps": 1.2345678e-5},
            spellings=(_l2_norm_by_root,),
        ),
        Variant(
            "unit_norm",
            _unit_norm,
            {"x": _TENSOR},
            spellings=(_unit_norm_by_root, _unit_norm_by_power),
        ),
    ),
    _check,
)
