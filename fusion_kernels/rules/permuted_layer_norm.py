"""LayerNorm over channels that stand in front: moved to the end, normed and moved back (ConvNeXt,
convolutional encoders of speech models).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.nn.functional import layer_norm

from fusion_kernels.rule import FusionRule, Match, Variant

_AFFINE: dict[str, tuple[int, ...] | float] = {"norm_weight": (8,), "norm_bias": (8,)}


def _permuted_layer_norm(x: Any, norm_weight: Any, norm_bias: Any, eps: float) -> Any:
    normed = layer_norm(x.transpose(1, 2), norm_weight.shape, norm_weight, norm_bias, eps)
    return normed.transpose(1, 2)


def _check(match: Match) -> str | None:
    """What is moved to the end is the channel dimension, and it comes back to its place."""
    rank = len(match.shape("x"))
    moved = _order(_order(tuple(range(rank)), match.nodes[0]), match.root)
    if moved != tuple(range(rank)):
        return "the dimensions do not come back to their places"
    if _order(tuple(range(rank)), match.nodes[0])[-1] != 1:
        return "it is not the channels, dimension 1, that are moved to the end"
    return None


def _order(dims: tuple[int, ...], move: fx.Node) -> tuple[int, ...]:
    """The dimensions after a permutation, which is tried on sizes that tell them apart."""
    target: Any = move.target
    sizes = torch.empty(tuple(dim + 2 for dim in dims), device="meta")
    return tuple(size - 2 for size in target(sizes, *move.args[1:], **move.kwargs).shape)


RULE = FusionRule(
    "permuted_layer_norm",
    (
        Variant(
            "permuted_layer_norm",
            _permuted_layer_norm,
            {"x": (4, 8, 16), **_AFFINE, "eps": 1.2345678e-5},
            frozenset(_AFFINE),
        ),
    ),
    _check,
)
