"""LayerNorm of a sum of embeddings: of words, of types or positions, or of all three (BERT)."""

from __future__ import annotations

from typing import Any

from torch.nn.functional import embedding, layer_norm

from fusion_kernels.rule import FusionRule, Match, Variant

_Examples = dict[str, tuple[int, ...] | float]
_AFFINE: _Examples = {"norm_weight": (8,), "norm_bias": (8,)}
_TWO: _Examples = {
    "words": (4, 2),
    "word_table": (16, 8),
    "positions": (4, 2),
    "position_table": (16, 8),
    **_AFFINE,
    "eps": 1.2345678e-5,
}
_THREE: _Examples = {**_TWO, "types": (4, 2), "type_table": (16, 8)}
_INDICES = frozenset({"words", "positions", "types"})


def _two(
    words: Any,
    word_table: Any,
    positions: Any,
    position_table: Any,
    norm_weight: Any,
    norm_bias: Any,
    eps: float,
) -> Any:
    total = embedding(words, word_table) + embedding(positions, position_table)
    return layer_norm(total, norm_weight.shape, norm_weight, norm_bias, eps)


def _three(
    words: Any,
    word_table: Any,
    types: Any,
    type_table: Any,
    positions: Any,
    position_table: Any,
    norm_weight: Any,
    norm_bias: Any,
    eps: float,
) -> Any:
    total = embedding(words, word_table) + embedding(types, type_table)
    total = total + embedding(positions, position_table)
    return layer_norm(total, norm_weight.shape, norm_weight, norm_bias, eps)


def _check(match: Match) -> str | None:
    """Positions may be those of one sample for all; the words are each sample's own."""
    target = tuple(match.root.meta["val"].shape)
    if match.shape("words") == target[:-1]:
        return None
    return f"words of shape {match.shape('words')} are broadcast to {target[:-1]}"


RULE = FusionRule(
    "embedding_layer_norm",
    (
        Variant(
            "three_embeddings_layer_norm", _three, _THREE, frozenset(_AFFINE), indices=_INDICES
        ),
        Variant("two_embeddings_layer_norm", _two, _TWO, frozenset(_AFFINE), indices=_INDICES),
    ),
    _check,
)
