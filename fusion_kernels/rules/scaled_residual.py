"""residual + scale * x for a scale that is smaller than x: one value a channel (layer scale, CaiT),
or one a channel of each sample, or one at all (a gate, DiT and Flamingo). The scaled x may be moved
to the residual's layout, channels to the front (ConvNeXt).
"""

from __future__ import annotations

import math
from typing import Any

from fusion_kernels.rule import FusionRule, Match, Variant

_LAYER_SCALE, _GATED, _MOVED = (
    "layer_scale_residual",
    "gated_residual",
    "permuted_layer_scale_residual",
)


def _scaled_residual(x: Any, scale: Any, residual: Any) -> Any:
    return residual + scale * x


def _permuted_scaled_residual(x: Any, scale: Any, residual: Any) -> Any:
    return residual + (scale * x).transpose(1, 2)


def _check(match: Match) -> str | None:
    """Sums of other products are no scaled residuals, and too common to be reported."""
    target = tuple(match.root.meta["val"].shape)
    scale = match.shape("scale")
    if match.variant == _MOVED:
        kept = match.shape("residual") == target and len(match.shape("x")) == len(target)
        return None if kept and scale == match.shape("x")[-1:] else ""
    rank = len(target)
    wide = [dim - len(scale) for dim, n in enumerate(scale) if n != 1]
    along = sum(dim != -rank for dim in wide)
    is_channels = len(scale) < rank and along == 1
    smaller = along <= 1 and math.prod(scale) < math.prod(target)
    whole = match.shape("x") == match.shape("residual") == target
    return None if whole and smaller and is_channels == (match.variant == _LAYER_SCALE) else ""


_EXAMPLES: dict[str, tuple[int, ...] | float] = {"x": (4, 8), "residual": (4, 8)}

RULE = FusionRule(
    "scaled_residual",
    (
        Variant(
            _MOVED,
            _permuted_scaled_residual,
            {"x": (4, 16, 8), "residual": (4, 8, 16), "scale": (8,)},
        ),
        Variant(_LAYER_SCALE, _scaled_residual, {**_EXAMPLES, "scale": (1, 8)}),
        Variant(_GATED, _scaled_residual, {**_EXAMPLES, "scale": (4, 1, 8)}),
    ),
    _check,
)
