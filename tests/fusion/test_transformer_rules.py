"""RMSNorm, gated activations and rotary embeddings: each form is found in each dtype, and what
only looks like one is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import gelu, relu, silu

X, R, W = torch.randn(4, 8), torch.randn(4, 8), torch.randn(8)
Q, COS, SIN = torch.randn(2, 3, 5, 8), torch.randn(2, 1, 5, 8), torch.randn(2, 1, 5, 8)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _llama(h: Any, w: Any) -> Any:
    """Widened before the norm, narrowed before the weight."""
    wide = h.float()
    return w * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(h.dtype)


def _t5(h: Any, w: Any) -> Any:
    """Only the squares are widened."""
    normed = h * torch.rsqrt(h.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    return w * normed.to(w.dtype)


def _gemma(h: Any, w: Any) -> Any:
    """The weight is near zero, and all is narrowed at the end."""
    wide = h.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (normed * (1.0 + w.float())).type_as(h)


def _rotated(x: Any) -> Any:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


def _rope(q: Any, cos: Any, sin: Any) -> Any:
    return q * cos + _rotated(q) * sin


def _matches(grown: Any) -> list[tuple[str, str]]:
    return [(m.rule, m.variant) for m in grown.matches]


def _same(grown: Any, rewritten: Any, form: Any, *tensors: torch.Tensor) -> None:
    loose = {"rtol": 3e-2, "atol": 3e-2} if tensors[0].dtype is not torch.float32 else {}
    torch.testing.assert_close(rewritten(grown)(*tensors), form(*tensors), **loose)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("norm", "suffix"), [(_llama, ""), (_t5, ""), (_gemma, "_plus_one")])
def test_an_added_norm_of_every_cast_order(
    grow: Any, rewritten: Any, norm: Callable[..., Any], suffix: str, dtype: torch.dtype
) -> None:
    """The sum goes on as the residual: a second output of the same kernel."""

    def form(x: Any, r: Any, w: Any) -> Any:
        h = x + r
        return h, norm(h, w)

    tensors = [t.to(dtype) for t in (X, R, W)]
    grown = grow(form, *tensors)
    assert _matches(grown) == [("rms_norm", f"add_rms_norm{suffix}")]
    (plan,) = grown.plans
    assert len(plan.lowered.outputs) == 2
    _same(grown, rewritten, form, *tensors)


@pytest.mark.parametrize(("norm", "suffix"), [(_llama, ""), (_gemma, "_plus_one")])
def test_a_norm_of_one_tensor(
    grow: Any, rewritten: Any, norm: Callable[..., Any], suffix: str
) -> None:
    grown = grow(norm, X, W)
    assert _matches(grown) == [("rms_norm", f"rms_norm{suffix}")]
    _same(grown, rewritten, norm, X, W)


@pytest.mark.parametrize(
    "twin",
    [
        lambda x, w: w * (x * torch.rsqrt(x.pow(3).mean(-1, keepdim=True).abs() + 1e-6)),
        lambda x, w: w * (x * torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)),
        lambda x, w: w * (x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + 1e-6)),
        lambda x, w: (2.0 + w) * (x.exp() * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)),
    ],
)
def test_what_is_no_rms_norm(grow: Any, twin: Callable[..., Any]) -> None:
    """Another power, a root that is not taken of the reciprocal, other rows, two values."""
    grown = grow(twin, X, W)
    assert _matches(grown) == []


def test_a_mean_over_other_dimensions_is_named(grow: Any) -> None:
    grown = grow(lambda x, w: w * (x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + 1e-6)), X, W)
    assert any("not over the last one" in m.reason for m in grown.mismatches)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("name", "activation"),
    [
        ("swiglu", silu),
        ("geglu", gelu),
        ("geglu_tanh", lambda x: gelu(x, approximate="tanh")),
        ("reglu", relu),
    ],
)
def test_gated_activations(
    grow: Any, rewritten: Any, name: str, activation: Callable[..., Any], dtype: torch.dtype
) -> None:
    def form(gate: Any, up: Any) -> Any:
        return activation(gate) * up

    tensors = (X.to(dtype), R.to(dtype))
    grown = grow(form, *tensors)
    assert _matches(grown) == [("gated_activation", name)]
    _same(grown, rewritten, form, *tensors)


def test_a_gate_that_is_broadcast_is_refused(grow: Any) -> None:
    grown = grow(lambda gate, up: silu(gate) * up, X[:1], R)
    assert _matches(grown) == []
    assert any("gate of shape (1, 8) is broadcast" in m.reason for m in grown.mismatches)


def test_a_sum_with_a_gate_is_no_gated_activation(grow: Any) -> None:
    assert _matches(grow(lambda gate, up: silu(gate) + up, X, R)) == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_rotary_embedding(grow: Any, rewritten: Any, dtype: torch.dtype) -> None:
    tensors = [t.to(dtype) for t in (Q, COS, SIN)]
    grown = grow(_rope, *tensors)
    assert _matches(grown) == [("rope", "rope")]
    _same(grown, rewritten, _rope, *tensors)


@pytest.mark.parametrize(
    "twin",
    [
        lambda q, cos, sin: q * cos + torch.cat((-q[..., :4], q[..., 4:]), -1) * sin,
        lambda q, cos, sin: q * cos + torch.cat((q[..., 4:], -q[..., :4]), -1) * sin,
        lambda q, cos, sin: q * cos + torch.cat((-cos[..., 4:] + q[..., 4:], q[..., :4]), -1) * sin,
        lambda q, cos, sin: q * cos - torch.cat((-q[..., 4:], q[..., :4]), -1) * sin,
    ],
)
def test_what_is_no_rotary_embedding(grow: Any, twin: Callable[..., Any]) -> None:
    """Halves in their old places, the sign on the other one, another's half, a difference."""
    assert _matches(grow(twin, Q, COS, SIN)) == []


def test_halves_in_their_old_places_are_named(grow: Any) -> None:
    grown = grow(lambda q, c, s: q * c + torch.cat((-q[..., :4], q[..., 4:]), -1) * s, Q, COS, SIN)
    assert any("is not that half of x" in m.reason for m in grown.mismatches)
