"""Norms written out: RMSNorm in each spelling, with and without a weight, lengths of 1, layer scale
before a LayerNorm, and RMSNorms under a condition; and what is none of these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import embedding, layer_norm

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


X, R, W, B = _drawn(2, 5, 257), _drawn(2, 5, 257, seed=1), _drawn(257, seed=2), _drawn(257, seed=3)
SCALE, SHIFT = _drawn(2, 257, seed=4), _drawn(2, 257, seed=5)


def _names(grown: Any) -> list[tuple[str, str]]:
    return [(m.rule, m.variant) for m in grown.matches]


def _is_right(grown: Any, rewritten: Any, form: Any, *tensors: torch.Tensor) -> None:
    """What the form is in float64, rounded once to its dtype."""
    eager, out = form(*tensors), rewritten(grown)(*tensors)
    wanted = form(*(t.double() for t in tensors)).to(eager.dtype)
    step = 2 * torch.finfo(eager.dtype).eps if eager.dtype is not torch.float32 else 1e-5
    torch.testing.assert_close(out, wanted, rtol=step, atol=1e-5)


def _squares(x: Any) -> Any:
    return x.pow(2).mean(-1, keepdim=True)


RMS: dict[str, Callable[[Any], Any]] = {
    "rsqrt": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    "x times x": lambda x: torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + 1e-6) * x,
    "square": lambda x: x * torch.rsqrt(torch.mean(torch.square(x), -1, keepdim=True) + 1e-6),
    "power": lambda x: x * torch.pow(_squares(x) + 1e-6, -0.5),
    "root": lambda x: x / torch.sqrt(_squares(x) + 1e-6),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("spelling", RMS)
def test_every_spelling_of_an_rms_norm(
    grow: Any, rewritten: Any, spelling: str, dtype: torch.dtype
) -> None:
    normed = RMS[spelling]
    forms: dict[str, Callable[..., Any]] = {
        "unweighted_rms_norm": lambda x, _r, _w: normed(x),
        "rms_norm": lambda x, _r, w: normed(x) * w,
        "add_rms_norm": lambda x, r, w: w * normed(x + r),
        "rms_norm_plus_one": lambda x, _r, w: normed(x) * (1 + w),
        "add_rms_norm_plus_one": lambda x, r, w: normed(r + x) * (1.0 + w),
    }
    tensors = [t.to(dtype) for t in (X, R, W)]
    for name, form in forms.items():
        grown = grow(form, *tensors)
        assert _names(grown) == [("rms_norm", name)]
        assert len(grown.plans) == 1
    _is_right(grown, rewritten, form, *tensors)


@pytest.mark.parametrize(
    "form",
    [
        lambda x: x * torch.pow(_squares(x) + 1e-6, -0.25),
        lambda x: x / (_squares(x) + 1e-6),
        lambda x: x * torch.rsqrt(x.abs().mean(-1, keepdim=True) + 1e-6),
        lambda x: x * torch.rsqrt(x.pow(2).mean((1, 2), keepdim=True) + 1e-6),
        lambda x: x[:, :1] * torch.rsqrt(_squares(x) + 1e-6),
    ],
)
def test_another_power_root_or_row_is_no_rms_norm(grow: Any, form: Callable[..., Any]) -> None:
    assert _names(grow(form, X)) == []


L2: list[tuple[str, Callable[[Any], Any]]] = [
    ("l2_norm", lambda x: x * torch.rsqrt((x * x).sum(dim=-1, keepdim=True) + 1e-6)),
    ("l2_norm", lambda x: x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)),
    ("l2_norm", lambda x: x / torch.sqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)),
    ("unit_norm", lambda x: x / x.norm(p=2, dim=-1, keepdim=True)),
    ("unit_norm", lambda x: x / torch.linalg.vector_norm(x, dim=2, keepdim=True)),
    ("unit_norm", lambda x: x / torch.pow(torch.sum(torch.pow(x, 2), -1, keepdim=True), 0.5)),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("name", "form"), L2)
def test_a_row_of_length_one(
    grow: Any, rewritten: Any, name: str, form: Callable[..., Any], dtype: torch.dtype
) -> None:
    x = X.to(dtype)
    grown = grow(form, x)
    assert _names(grown) == [("l2_norm", name)]
    assert len(grown.plans) == 1
    _is_right(grown, rewritten, form, x)


@pytest.mark.parametrize(
    "form",
    [
        lambda x: x / x.norm(p=1, dim=-1, keepdim=True),
        lambda x: x / x.norm(p=2, dim=1, keepdim=True),
        lambda x: x * torch.rsqrt(x.pow(3).sum(-1, keepdim=True).abs() + 1e-6),
        lambda x: x * torch.rsqrt(x.pow(2).sum(1, keepdim=True) + 1e-6),
        lambda x: x / torch.pow(x.pow(2).sum(-1, keepdim=True), 0.51),
    ],
)
def test_another_length_is_no_l2_norm(grow: Any, form: Callable[..., Any]) -> None:
    assert _names(grow(form, X)) == []


def test_another_root_is_named(grow: Any) -> None:
    grown = grow(lambda x: x / torch.pow(x.pow(2).sum(-1, keepdim=True), 0.51), X)
    assert [m.reason for m in grown.mismatches] == [
        "unit_norm: exponent is 0.51, the rule needs 0.5"
    ]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_layer_scale_before_a_norm(grow: Any, rewritten: Any, dtype: torch.dtype) -> None:
    """As DINOv2 has it; the sum goes on as the residual."""

    def form(x: Any, gamma: Any, r: Any, w: Any) -> Any:
        return layer_norm(x * gamma + r, (257,), w)

    tensors = [t.to(dtype) for t in (X, W, R, B)]
    grown = grow(form, *tensors)
    assert _names(grown) == [("add_layer_norm", "layer_scale_add_layer_norm")]
    _is_right(grown, rewritten, form, *tensors)


def test_a_product_of_two_tensors_is_no_layer_scale_before_a_norm(grow: Any) -> None:
    grown = grow(lambda x, r: layer_norm(x * r + r, (257,)), X, R)
    assert _names(grown) == [("add_layer_norm", "add_layer_norm")]


@pytest.mark.parametrize("weighted", [True, False])
def test_a_modulated_rms_norm(grow: Any, rewritten: Any, weighted: bool) -> None:
    def form(x: Any, w: Any, scale: Any, shift: Any) -> Any:
        normed = x * torch.rsqrt(_squares(x) + 1e-6)
        return (normed * w if weighted else normed) * (1 + scale[:, None]) + shift[:, None]

    grown = grow(form, X, W, SCALE, SHIFT)
    assert _names(grown) == [("modulated_norm", "modulated_rms_norm")]
    assert len(grown.plans) == 1
    _is_right(grown, rewritten, form, X, W, SCALE, SHIFT)


def test_a_norm_before_a_residual_is_not_modulated(grow: Any) -> None:
    """Gemma 2's post-norms: 1 + w scales, and what is added is the residual."""

    def form(x: Any, w: Any, r: Any) -> Any:
        return x * torch.rsqrt(_squares(x) + 1e-6) * (1 + w) + r

    grown = grow(form, X, W, R)
    assert _names(grown) == [("rms_norm", "rms_norm_plus_one")]
    assert len(grown.plans) == 1


IDS, TYPES = torch.arange(10).reshape(2, 5) * 3 % 17, torch.arange(10).reshape(2, 5) % 2
POSITIONS = torch.arange(5)[None]
TABLE, TYPE_TABLE, PLACES = _drawn(17, 257, seed=6), _drawn(2, 257, seed=7), _drawn(9, 257, seed=8)


def test_a_norm_of_three_embeddings(grow: Any, rewritten: Any) -> None:
    """As BERT has it; one sample's positions serve for all."""

    def form(ids: Any, types: Any, at: Any, words: Any, kinds: Any, places: Any, w: Any) -> Any:
        total = embedding(ids, words, padding_idx=0) + embedding(types, kinds)
        return layer_norm(total + embedding(at, places), (257,), w)

    tensors = (IDS, TYPES, POSITIONS, TABLE, TYPE_TABLE, PLACES, W)
    grown = grow(form, *tensors)
    assert _names(grown) == [("embedding_layer_norm", "three_embeddings_layer_norm")]
    assert len(grown.plans) == 1
    torch.testing.assert_close(rewritten(grown)(*tensors), form(*tensors))


def test_a_norm_of_two_embeddings(grow: Any, rewritten: Any) -> None:
    def form(ids: Any, at: Any, words: Any, places: Any, w: Any, b: Any) -> Any:
        return layer_norm(embedding(at, places) + embedding(ids, words), (257,), w, b)

    tensors = (IDS, POSITIONS, TABLE, PLACES, W, B)
    grown = grow(form, *tensors)
    assert _names(grown) == [("embedding_layer_norm", "two_embeddings_layer_norm")]
    assert grown.matches[0].shape("words") == (2, 5)
    torch.testing.assert_close(rewritten(grown)(*tensors), form(*tensors))


@pytest.mark.parametrize(
    "form",
    [
        lambda ids, words, w: layer_norm(embedding(ids, words) * w, (257,)),
        lambda ids, words, w: layer_norm(embedding(ids, words) - embedding(ids, words), (257,), w),
        lambda ids, words, w: layer_norm(embedding(ids, words) + w, (257,)),
    ],
)
def test_what_is_no_norm_of_embeddings(grow: Any, form: Callable[..., Any]) -> None:
    """A product, a difference, one embedding and a vector."""
    found = [rule for rule, _ in _names(grow(form, IDS, TABLE, W))]
    assert "embedding_layer_norm" not in found
