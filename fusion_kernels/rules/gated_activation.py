"""act(gate) * up for SiLU (SwiGLU), GELU in both forms (GeGLU) and ReLU (ReGLU)."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch.nn.functional import gelu, relu, silu

from fusion_kernels.rule import FusionRule, Match, Variant

_TENSORS: dict[str, tuple[int, ...] | float] = {"gate": (4, 8), "up": (4, 8)}


def _gated(gate: Any, up: Any, *, activation: Any) -> Any:
    return activation(gate) * up


def _check(match: Match) -> str | None:
    target = tuple(match.root.meta["val"].shape)
    for name in ("gate", "up"):
        if match.shape(name) != target:
            return f"{name} of shape {match.shape(name)} is broadcast to {target}"
    return None


_ACTIVATIONS = {
    "swiglu": silu,
    "geglu": gelu,
    "geglu_tanh": partial(gelu, approximate="tanh"),
    "reglu": relu,
}

RULE = FusionRule(
    "gated_activation",
    tuple(
        Variant(name, partial(_gated, activation=activation), _TENSORS)
        for name, activation in _ACTIVATIONS.items()
    ),
    _check,
)
