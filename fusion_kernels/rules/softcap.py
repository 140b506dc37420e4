"""tanh(x / cap) * cap: logits kept between -cap and cap (Gemma 2)."""

from __future__ import annotations

from typing import Any

import torch

from fusion_kernels.rule import FusionRule, Match, Variant


def _softcap(x: Any, cap: float) -> Any:
    return torch.tanh(x / cap) * cap


def _check(match: Match) -> str | None:
    cap = match.bindings["cap"]
    return None if cap > 0 else f"the cap {cap} is not positive"


RULE = FusionRule(
    "softcap", (Variant("softcap", _softcap, {"x": (4, 8), "cap": 12.345678}),), _check
)
