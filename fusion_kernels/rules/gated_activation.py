"""act(gate) * up for SiLU (SwiGLU), GELU in three forms (GeGLU) and ReLU (ReGLU), each as one
operator or written out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch.nn.functional import gelu, relu, silu

from fusion_kernels.rule import FusionRule, Match, Variant
from fusion_kernels.rules import written

_TENSORS: dict[str, tuple[int, ...] | float] = {"gate": (4, 8), "up": (4, 8)}


def _gated(gate: Any, up: Any, *, activation: Any) -> Any:
    return activation(gate) * up


def _check(match: Match) -> str | None:
    target = tuple(match.root.meta["val"].shape)
    for name in ("gate", "up"):
        if match.shape(name) != target:
            return f"{name} of shape {match.shape(name)} is broadcast to {target}"
    return None


_ACTIVATIONS: dict[str, tuple[Callable[[Any], Any], ...]] = {
    "swiglu": (silu, written.silu),
    "geglu": (gelu, written.gelu_erf),
    "geglu_tanh": (
        partial(gelu, approximate="tanh"),
        written.gelu_tanh,
        written.gelu_tanh_factored,
    ),
    "quick_geglu": (written.quick_gelu,),
    "reglu": (relu,),
}

RULE = FusionRule(
    "gated_activation",
    tuple(
        Variant(
            name,
            partial(_gated, activation=forms[0]),
            _TENSORS,
            spellings=tuple(partial(_gated, activation=form) for form in forms[1:]),
        )
        for name, forms in _ACTIVATIONS.items()
    ),
    _check,
)
