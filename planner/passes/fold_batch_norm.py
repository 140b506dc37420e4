"""Folds an inference batch norm into the convolution or linear before it.

y = (W x + b - mean) / sqrt(var + eps) * gamma + beta is (s W) x + (b - mean) s + beta with
s = gamma / sqrt(var + eps).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from planner.passes.derived import Derived, add_derived, fixed_weights
from planner.passes.noops import same_meta

aten = torch.ops.aten

_NORM = aten._native_batch_norm_legit_no_training.default
_LAYERS = {
    aten.linear.default,
    aten.conv1d.default,
    aten.conv1d.padding,
    aten.conv2d.default,
    aten.conv2d.padding,
    aten.conv3d.default,
    aten.conv3d.padding,
}
# In 16 bits the folded weight would be rounded once more than the model's own.
_DTYPES = {torch.float32, torch.float64}
_ROLES = ("weight", "bias", "gamma", "beta", "mean", "variance")


@dataclass(frozen=True, slots=True)
class _Place:
    """A layer, the norm after it and the part of the norm's result that is read; `weights` are
    the names of those that _ROLES lists, "" for one that is not there.
    """

    layer: fx.Node
    norm: fx.Node
    result: fx.Node
    weights: Sequence[str]
    eps: float


def fold_batch_norm(program: ExportedProgram) -> tuple[str, ...]:
    """Give the layer before each batch norm weights that do both; they are copies, in the
    program's constants.

    Only where nothing else reads the layer's result, both have weights of 32 bits or more that the
    forward does not write, and channels are the layer's outputs. The fold is computed in float64.
    """
    fixed = fixed_weights(program)
    places = [_place(node, fixed) for node in program.graph.nodes if node.target is _NORM]
    found = [place for place in places if place is not None]
    added = sum(_fold(program, place) for place in found)
    if not found:
        return ()
    return (f"{len(found)} batch norms folded, {added / 1e6:.1f} MB of weights more",)


def folded_weight(eps: float, weight: Tensor, variance: Tensor, gamma: Tensor | None) -> Tensor:
    """The layer's weight times gamma / sqrt(variance + eps), in the weight's dtype."""
    scale = _scale(eps, variance, gamma)
    folded = weight.double() * scale.reshape(-1, *[1] * (weight.ndim - 1))
    return folded.to(weight.dtype)


def folded_bias(
    eps: float,
    variance: Tensor,
    mean: Tensor,
    gamma: Tensor | None,
    beta: Tensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """(bias - mean) * gamma / sqrt(variance + eps) + beta; None is no bias, 1 for gamma."""
    shifted = -mean.double() if bias is None else bias.double() - mean.double()
    folded = shifted * _scale(eps, variance, gamma)
    return (folded if beta is None else folded + beta.double()).to(dtype)


def _scale(eps: float, variance: Tensor, gamma: Tensor | None) -> Tensor:
    scale = (variance.double() + eps).rsqrt()
    return scale if gamma is None else scale * gamma.double()


def _place(norm: fx.Node, fixed: Any) -> _Place | None:
    layer, gamma, beta, mean, variance, _, eps = norm.args
    if not isinstance(layer, fx.Node) or layer.target not in _LAYERS:
        return None
    weight, bias = layer.args[1], layer.args[2] if len(layer.args) > 2 else None
    given = (weight, bias, gamma, beta, mean, variance)
    names = [fixed.get(node.name) if isinstance(node, fx.Node) else "" for node in given]
    (result, *others) = list(norm.users) or [norm]
    if None in names or not names[0] or others or list(layer.users) != [norm]:
        return None
    if result.target is not operator.getitem or result.args[1] != 0:
        return None
    own, shape = layer.meta["val"], weight.meta["val"]  # type: ignore[union-attr]
    channels_second = own.ndim == max(shape.ndim, 2)
    tensors = [node.meta["val"] for node in given if isinstance(node, fx.Node)]
    one_dtype = {own.dtype} == {tensor.dtype for tensor in tensors} and own.dtype in _DTYPES
    if not channels_second or not one_dtype or not same_meta(own, result.meta["val"]):
        return None
    return _Place(layer, norm, result, [str(name) for name in names], float(eps))  # type: ignore[arg-type]


def _fold(program: ExportedProgram, place: _Place) -> int:
    """Returns the bytes that were added."""
    weight, bias, gamma, beta, mean, variance = place.weights
    layer, dtype = place.layer, place.layer.meta["val"].dtype
    make_weight = _Called(partial(folded_weight, place.eps), (True, True, bool(gamma)))
    present = (True, True, bool(gamma), bool(beta), bool(bias))
    make_bias = _Called(partial(folded_bias, place.eps, dtype=dtype), present)
    new = [
        add_derived(
            program, f"{layer.name}_weight", _derived(make_weight, weight, variance, gamma)
        ),
        add_derived(
            program, f"{layer.name}_bias", _derived(make_bias, variance, mean, gamma, beta, bias)
        ),
    ]
    layer.args = (layer.args[0], *new, *layer.args[3:])
    place.result.replace_all_uses_with(layer)
    program.graph.erase_node(place.result)
    program.graph.erase_node(place.norm)
    return sum(node.meta["val"].numel() * dtype.itemsize for node in new)


@dataclass(frozen=True, slots=True)
class _Called:
    """Calls `function` with the tensors given, and None where none is `present`."""

    function: partial[Tensor]
    present: tuple[bool, ...]

    def __call__(self, *tensors: Tensor) -> Tensor:
        given = iter(tensors)
        return self.function(*(next(given) if there else None for there in self.present))


def _derived(called: _Called, *names: str) -> Derived:
    return Derived(tuple(name for name in names if name), called)
