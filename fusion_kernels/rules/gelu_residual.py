"""GELU(x [+ bias]) [+ residual], at least one of the two additions, in the erf, the tanh and the
sigmoid form, each as one operator or written out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch.nn.functional import gelu

from fusion_kernels.rule import FusionRule, Match, Variant, broadcasts_into
from fusion_kernels.rules.written import gelu_erf, gelu_tanh, gelu_tanh_factored, quick_gelu

_TENSOR, _VECTOR = (4, 8), (8,)
_Function = Callable[[Any], Any]

_FORMS: dict[str, tuple[_Function, ...]] = {
    "gelu": (gelu, gelu_erf),
    "gelu_tanh": (partial(gelu, approximate="tanh"), gelu_tanh, gelu_tanh_factored),
    "quick_gelu": (quick_gelu,),
}


def _bias_gelu_residual(x: Any, bias: Any, residual: Any, *, form: _Function) -> Any:
    return form(x + bias) + residual


def _gelu_residual(x: Any, residual: Any, *, form: _Function) -> Any:
    return form(x) + residual


def _bias_gelu(x: Any, bias: Any, *, form: _Function) -> Any:
    return form(x + bias)


def _check(match: Match) -> str | None:
    target = tuple(match.root.meta["val"].shape)
    if match.shape("x") != target:
        return f"x of shape {match.shape('x')} is broadcast to {target}"
    if "bias" in match.bindings and match.shape("bias") != target[-1:]:
        return f"the bias of shape {match.shape('bias')} is not one value a column"
    if "residual" in match.bindings and not broadcasts_into(match.shape("residual"), target):
        return f"the residual of shape {match.shape('residual')} does not broadcast to {target}"
    return None


def _variants(name: str, forms: tuple[_Function, ...]) -> tuple[Variant, ...]:
    parameters: dict[str, tuple[Callable[..., Any], dict[str, tuple[int, ...] | float]]] = {
        f"bias_{name}_residual": (
            _bias_gelu_residual,
            {"x": _TENSOR, "bias": _VECTOR, "residual": _TENSOR},
        ),
        f"{name}_residual": (_gelu_residual, {"x": _TENSOR, "residual": _TENSOR}),
        f"bias_{name}": (_bias_gelu, {"x": _TENSOR, "bias": _VECTOR}),
    }
    return tuple(
        Variant(
            label,
            partial(function, form=forms[0]),
            examples,
            spellings=tuple(partial(function, form=form) for form in forms[1:]),
        )
        for label, (function, examples) in parameters.items()
    )


RULE = FusionRule(
    "gelu_residual",
    tuple(variant for name, forms in _FORMS.items() for variant in _variants(name, forms)),
    _check,
)
