"""Scaled residuals, modulated norms and dynamic tanh as models write them, and what only looks
like one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import layer_norm

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


X, R = _drawn(2, 5, 257), _drawn(2, 5, 257, seed=1)
GAMMA, BETA = _drawn(257, seed=2), _drawn(257, seed=3)
GATE, SCALE, SHIFT = (_drawn(2, 257, seed=seed) for seed in (4, 5, 6))
ALPHA = torch.full((1,), 0.5)


def _names(grown: Any) -> list[tuple[str, str]]:
    return [(m.rule, m.variant) for m in grown.matches]


def _same(grown: Any, rewritten: Any, form: Any, *tensors: torch.Tensor) -> None:
    loose = {"rtol": 3e-2, "atol": 6e-2} if tensors[0].dtype is not torch.float32 else {}
    torch.testing.assert_close(rewritten(grown)(*tensors), form(*tensors), **loose)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "form",
    [
        lambda x, gamma, r: r + gamma * x,
        lambda x, gamma, r: r + x * gamma,
        lambda x, gamma, r: x * gamma + r,
        lambda x, gamma, r: gamma[None, None] * x + r,
    ],
)
def test_a_layer_scale(grow: Any, rewritten: Any, form: Any, dtype: torch.dtype) -> None:
    tensors = [t.to(dtype) for t in (X, GAMMA, R)]
    grown = grow(form, *tensors)
    ((rule, variant),) = _names(grown)
    assert rule == "scaled_residual"
    assert variant in ("layer_scale_residual", "gated_residual")
    assert len(grown.plans) == 1
    _same(grown, rewritten, form, *tensors)


def test_a_layer_scale_of_channels_in_front(grow: Any, rewritten: Any) -> None:
    """As PoolFormer and MobileCLIP have it."""

    def form(x: Any, gamma: Any, r: Any) -> Any:
        return r + gamma.unsqueeze(-1).unsqueeze(-1) * x

    tensors = _drawn(2, 6, 5, 4), _drawn(6), _drawn(2, 6, 5, 4, seed=1)
    grown = grow(form, *tensors)
    assert _names(grown) == [("scaled_residual", "layer_scale_residual")]
    assert grown.matches[0].shape("scale") == (6, 1, 1)
    _same(grown, rewritten, form, *tensors)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_gate_of_each_sample(grow: Any, rewritten: Any, dtype: torch.dtype) -> None:
    """As DiT has it: x + gate.unsqueeze(1) * block(x)."""

    def form(x: Any, gate: Any, r: Any) -> Any:
        return r + gate.unsqueeze(1) * x

    tensors = [t.to(dtype) for t in (X, GATE, R)]
    grown = grow(form, *tensors)
    assert _names(grown) == [("scaled_residual", "gated_residual")]
    _same(grown, rewritten, form, *tensors)


def test_a_gate_of_one_value(grow: Any, rewritten: Any) -> None:
    """As Flamingo has it: x + tanh(gate) * attention."""

    def form(x: Any, gate: Any, r: Any) -> Any:
        return torch.tanh(gate) * x + r

    grown = grow(form, X, ALPHA, R)
    assert _names(grown) == [("scaled_residual", "gated_residual")]
    _same(grown, rewritten, form, X, ALPHA, R)


@pytest.mark.parametrize(
    "form",
    [
        lambda x, g, r: r + x * (g * r),
        lambda x, g, r: r - g * x,
        lambda x, g, r: torch.add(r, g * x, alpha=2),
        lambda x, g, r: (g * x) * r,
        lambda x, g, r: r + 0.5 * (g * x),
        lambda x, g, r: x[:, :1] * g + r,
    ],
)
def test_what_is_no_scaled_residual(grow: Any, form: Callable[..., Any]) -> None:
    """A full product, a difference, twice or half of it, a product, a small x."""
    assert _names(grow(form, X, GAMMA, R)) == []


def test_sums_of_products_are_not_reported(grow: Any) -> None:
    assert grow(lambda x, r: x * r + r, X, R).mismatches == ()


MODULATED: dict[str, Callable[..., Any]] = {
    "modulated_layer_norm": lambda x, _r, _g, scale, shift: (
        layer_norm(x, (257,), eps=1e-6) * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)
    ),
    "add_modulated_layer_norm": lambda x, r, _g, scale, shift: (
        layer_norm(r + x, (257,), eps=1e-6) * (scale[:, None] + 1) + shift[:, None]
    ),
    "gated_add_modulated_layer_norm": lambda x, r, gate, scale, shift: (
        shift[:, None]
        + (1 + scale[:, None]) * layer_norm(r + gate.unsqueeze(1) * x, (257,), eps=1e-6)
    ),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MODULATED)
def test_a_modulated_norm(grow: Any, rewritten: Any, name: str, dtype: torch.dtype) -> None:
    tensors = [t.to(dtype) for t in (X, R, GATE, SCALE, SHIFT)]
    grown = grow(MODULATED[name], *tensors)
    assert _names(grown) == [("modulated_norm", name)]
    assert len(grown.plans) == 1
    _same(grown, rewritten, MODULATED[name], *tensors)


def test_a_modulated_norm_may_have_weights(grow: Any, rewritten: Any) -> None:
    def form(x: Any, weight: Any, bias: Any, scale: Any, shift: Any) -> Any:
        return layer_norm(x, (257,), weight, bias) * (1 + scale[:, None]) + shift[:, None]

    tensors = (X, GAMMA, BETA, SCALE, SHIFT)
    grown = grow(form, *tensors)
    assert _names(grown) == [("modulated_norm", "modulated_layer_norm")]
    _same(grown, rewritten, form, *tensors)


def test_the_gated_sum_goes_on_as_the_residual(grow: Any, rewritten: Any) -> None:
    def form(x: Any, r: Any, gate: Any, scale: Any, shift: Any) -> Any:
        h = r + gate[:, None] * x
        return h, layer_norm(h, (257,)) * (1 + scale[:, None]) + shift[:, None]

    tensors = (X, R, GATE, SCALE, SHIFT)
    grown = grow(form, *tensors)
    assert _names(grown) == [("modulated_norm", "gated_add_modulated_layer_norm")]
    assert len(grown.plans[0].lowered.outputs) == 2
    _same(grown, rewritten, form, *tensors)


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (
            lambda x, s, t: layer_norm(x, (257,)) * (2 + s[:, None]) + t[:, None],
            "other is 2, the rule needs 1.0",
        ),
        (
            lambda x, s, t: 0.5 * layer_norm(x, (257,)) * (1 + s[:, None]) + t[:, None],
            "the constant is 0.5, the rule needs 1",
        ),
        (
            lambda x, s, t: torch.add(
                layer_norm(x, (257,)) * (1 + s[:, None]), t[:, None], alpha=2
            ),
            "alpha is 2, the rule needs 1",
        ),
    ],
)
def test_another_modulation_is_named(grow: Any, form: Any, reason: str) -> None:
    grown = grow(form, X, SCALE, SHIFT)
    assert ("modulated_norm", "modulated_layer_norm") not in _names(grown)
    assert any(m.reason == f"modulated_layer_norm: {reason}" for m in grown.mismatches)


@pytest.mark.parametrize(
    "form",
    [
        lambda x, s, t: layer_norm(x, (257,)) * (1 - s[:, None]) + t[:, None],
        lambda x, s, t: layer_norm(x, (257,)) * (1 + s[:, None]) - t[:, None],
        lambda x, s, t: torch.tanh(x) * (1 + s[:, None]) + t[:, None],
    ],
)
def test_what_is_no_modulated_norm(grow: Any, form: Any) -> None:
    assert "modulated_norm" not in [rule for rule, _ in _names(grow(form, X, SCALE, SHIFT))]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_dynamic_tanh(grow: Any, rewritten: Any, dtype: torch.dtype) -> None:
    def form(x: Any, alpha: Any, weight: Any, bias: Any) -> Any:
        return torch.tanh(alpha * x) * weight + bias

    tensors = [t.to(dtype) for t in (X, ALPHA, GAMMA, BETA)]
    grown = grow(form, *tensors)
    assert _names(grown) == [("dynamic_tanh", "dynamic_tanh")]
    assert grown.matches[0].shape("alpha") == (1,)
    assert len(grown.plans) == 1
    _same(grown, rewritten, form, *tensors)


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (lambda x, _a, w, b: torch.tanh(w * x) * w + b, "alpha of shape (257,) is not one value"),
        (
            lambda x, a, w, b: 2 * torch.tanh(a * x) * w + b,
            "the constant is 2, the rule needs 1",
        ),
        (
            lambda x, a, _w, b: torch.tanh(a * x) * x + b,
            "weight of shape (2, 5, 257) is not a vector",
        ),
    ],
)
def test_what_is_no_dynamic_tanh(grow: Any, form: Any, reason: str) -> None:
    grown = grow(form, X, ALPHA, GAMMA, BETA)
    assert "dynamic_tanh" not in [rule for rule, _ in _names(grown)]
    assert f"dynamic_tanh: {reason}" in [m.reason for m in grown.mismatches]
