"""Attention's softmax over the last dimension: of scores scaled, capped, and masked by a sum or by
a fill. A row that is masked throughout comes out as in eager: NaN after -inf, even after a number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fusion_kernels.rule import FusionRule, Match, Variant, broadcasts_into

_Examples = dict[str, tuple[int, ...] | float]
_SCORES: _Examples = {"scores": (4, 8)}
_SCALE: _Examples = {"scale": 0.12345678}
_CAP: _Examples = {"cap": 12.345678}
_MASK: _Examples = {"mask": (4, 8)}
_FILL: _Examples = {**_MASK, "value": -12345.678, "fill": ()}


def _scaled(scores: Any, scale: float) -> Any:
    return torch.softmax(scores * scale, -1)


def _masked(scores: Any, mask: Any) -> Any:
    return torch.softmax(scores + mask, -1)


def _scaled_masked(scores: Any, scale: float, mask: Any) -> Any:
    return _masked(scores * scale, mask)


def _capped_masked(scores: Any, scale: float, cap: float, mask: Any) -> Any:
    return _masked(torch.tanh(scores * scale) * cap, mask)


def _filled(scores: Any, mask: Any, value: float) -> Any:
    return torch.softmax(scores.masked_fill(mask, value), -1)


def _chosen(scores: Any, mask: Any, value: float) -> Any:
    return torch.softmax(torch.where(mask, scores, value), -1)


def _chosen_tensor(scores: Any, mask: Any, fill: Any) -> Any:
    return torch.softmax(torch.where(mask, scores, fill), -1)


def _scaled_filled(scores: Any, scale: float, mask: Any, value: float) -> Any:
    return _filled(scores * scale, mask, value)


def _scaled_chosen(scores: Any, scale: float, mask: Any, value: float) -> Any:
    return _chosen(scores * scale, mask, value)


def _scaled_chosen_tensor(scores: Any, scale: float, mask: Any, fill: Any) -> Any:
    return _chosen_tensor(scores * scale, mask, fill)


def _check(match: Match) -> str | None:
    target = tuple(match.root.meta["val"].shape)
    if match.shape("scores") != target:
        return f"scores of shape {match.shape('scores')} are broadcast to {target}"
    if "mask" in match.bindings and not broadcasts_into(match.shape("mask"), target):
        return f"the mask of shape {match.shape('mask')} does not broadcast to {target}"
    return None


def _variant(
    name: str, *patterns: Callable[..., Any], **examples: tuple[int, ...] | float
) -> Variant:
    masks = frozenset({"mask"}) if "value" in examples else frozenset()
    return Variant(name, patterns[0], {**_SCORES, **examples}, masks=masks, spellings=patterns[1:])


RULE = FusionRule(
    "masked_softmax",
    (
        _variant("capped_masked_softmax", _capped_masked, **_SCALE, **_CAP, **_MASK),
        _variant(
            "scaled_filled_softmax",
            _scaled_filled,
            _scaled_chosen,
            _scaled_chosen_tensor,
            **_SCALE,
            **_FILL,
        ),
        _variant("scaled_masked_softmax", _scaled_masked, **_SCALE, **_MASK),
        _variant("filled_softmax", _filled, _chosen, _chosen_tensor, **_FILL),
        _variant("masked_softmax", _masked, **_MASK),
        _variant("scaled_softmax", _scaled, **_SCALE),
    ),
    _check,
)
