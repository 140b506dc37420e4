"""Rules whose kernels hold views and reductions over several dimensions: norms of groups and of
channels that stand in front, layer scales that are moved, and rotations of neighbouring columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import group_norm, layer_norm, silu

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BATCHES = (1, 2)


def _drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


W, B = _drawn(6, seed=2), _drawn(6, seed=3)


def _names(grown: Any) -> list[tuple[str, str]]:
    return [(m.rule, m.variant) for m in grown.matches]


def _is_right(grown: Any, rewritten: Any, form: Any, *tensors: torch.Tensor) -> None:
    """What the form is in float64, rounded once to its dtype."""
    eager, out = form(*tensors), rewritten(grown)(*tensors)
    wanted = form(*(t.double() for t in tensors)).to(eager.dtype)
    step = 2 * torch.finfo(eager.dtype).eps if eager.dtype is not torch.float32 else 1e-5
    torch.testing.assert_close(out, wanted, rtol=step, atol=1e-5)
    assert out.stride() == eager.stride()


MOVED: list[Callable[..., Any]] = [
    lambda x, w, b: layer_norm(x.permute(0, 2, 3, 1), (6,), w, b).permute(0, 3, 1, 2),
    lambda x, w, b: layer_norm(x.movedim(1, -1), (6,), w, b, eps=1e-6).movedim(-1, 1),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("form", MOVED)
def test_a_norm_of_channels_in_front(
    grow: Any, rewritten: Any, form: Callable[..., Any], batch: int, dtype: torch.dtype
) -> None:
    tensors = (_drawn(batch, 6, 5, 7, dtype=dtype), W.to(dtype), B.to(dtype))
    grown = grow(form, *tensors)
    assert _names(grown) == [("permuted_layer_norm", "permuted_layer_norm")]
    assert len(grown.plans) == 1
    _is_right(grown, rewritten, form, *tensors)


@pytest.mark.parametrize("batch", BATCHES)
def test_a_norm_of_channels_over_time(grow: Any, rewritten: Any, batch: int) -> None:
    def form(x: Any, w: Any, b: Any) -> Any:
        return layer_norm(x.transpose(1, 2), (6,), w, b).transpose(-1, -2)

    tensors = (_drawn(batch, 6, 257), W, B)
    grown = grow(form, *tensors)
    assert _names(grown) == [("permuted_layer_norm", "permuted_layer_norm")]
    _is_right(grown, rewritten, form, *tensors)


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (
            lambda x, w, b: layer_norm(x.permute(0, 2, 3, 1), (6,), w, b).permute(0, 3, 2, 1),
            "the dimensions do not come back to their places",
        ),
        (
            lambda x, w, b: layer_norm(x.permute(0, 1, 3, 2), (6,), w, b).permute(0, 1, 3, 2),
            "it is not the channels, dimension 1, that are moved to the end",
        ),
    ],
)
def test_another_move_is_named(grow: Any, form: Callable[..., Any], reason: str) -> None:
    grown = grow(form, _drawn(2, 6, 6, 6), W, B)
    assert _names(grown) == []
    assert [m.reason for m in grown.mismatches] == [f"permuted_layer_norm: {reason}"]


GROUPED: list[tuple[str, Callable[..., Any]]] = [
    ("group_norm_silu", lambda x, w, b, _t: silu(group_norm(x, 2, w, b))),
    ("group_norm_silu", lambda x, w, b, _t: silu(group_norm(x, 3, w, b, 1e-6))),
    ("group_norm_silu", lambda x, w, b, _t: (g := group_norm(x, 2, w, b)) * torch.sigmoid(g)),
    ("group_norm_silu", lambda x, _w, _b, _t: silu(group_norm(x, 6))),
    ("add_group_norm_silu", lambda x, w, b, t: silu(group_norm(x + t[:, :, None, None], 2, w, b))),
    ("add_group_norm_silu", lambda x, w, b, _t: silu(group_norm(x + x.flip(0), 2, w, b))),
]


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("name", "form"), GROUPED)
def test_a_norm_of_groups_and_its_activation(
    grow: Any, rewritten: Any, name: str, form: Callable[..., Any], batch: int
) -> None:
    tensors = (_drawn(batch, 6, 5, 7), W, B, _drawn(batch, 6, seed=4))
    grown = grow(form, *tensors)
    assert _names(grown) == [("group_norm_activation", name)]
    assert len(grown.plans) == 1
    _is_right(grown, rewritten, form, *tensors)


def test_a_skip_joins_the_kernel(grow: Any, rewritten: Any) -> None:
    def form(x: Any, w: Any, b: Any) -> Any:
        return silu(group_norm(x, 2, w, b)) + x

    tensors = (_drawn(2, 6, 5, 7), W, B)
    grown = grow(form, *tensors)
    assert _names(grown) == [("group_norm_activation", "group_norm_silu")]
    assert len(grown.plans) == 1
    assert grown.regions[0][-1] == "add"
    _is_right(grown, rewritten, form, *tensors)


@pytest.mark.parametrize(
    "form",
    [
        lambda x, w, b: torch.relu(group_norm(x, 2, w, b)),
        lambda x, w, b: group_norm(silu(x), 2, w, b),
        lambda x, w, b: group_norm(x, 2, w, b) * torch.sigmoid(x),
        lambda x, w, b: silu(layer_norm(x.transpose(1, 3), (6,), w, b)),
    ],
)
def test_what_is_no_norm_of_groups_with_silu(grow: Any, form: Callable[..., Any]) -> None:
    assert _names(grow(form, _drawn(2, 6, 5, 7), W, B)) == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("batch", BATCHES)
def test_a_layer_scale_that_is_moved(
    grow: Any, rewritten: Any, batch: int, dtype: torch.dtype
) -> None:
    """As ConvNeXt has it: channels last within the block, in front outside."""

    def form(x: Any, gamma: Any, r: Any) -> Any:
        return r + (gamma * x).permute(0, 3, 1, 2)

    shapes = (_drawn(batch, 5, 7, 6), W, _drawn(batch, 6, 5, 7, seed=1))
    tensors = [t.to(dtype) for t in shapes]
    grown = grow(form, *tensors)
    assert _names(grown) == [("scaled_residual", "permuted_layer_scale_residual")]
    assert len(grown.plans) == 1
    _is_right(grown, rewritten, form, *tensors)


def _turned(x: Any) -> Any:
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


TURNED: list[Callable[..., Any]] = [
    lambda q, cos, sin: q * cos + _turned(q) * sin,
    lambda q, cos, sin: (
        (q.float() * cos)
        + torch.stack((-q.float()[..., 1::2], q.float()[..., ::2]), -1).flatten(-2) * sin
    ),
    lambda q, cos, sin: (
        cos * q + sin * torch.stack((-q[..., 1::2], q[..., ::2]), -1).reshape(q.shape)
    ),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", [TURNED[0], TURNED[2]])
def test_a_rotation_of_neighbours(
    grow: Any, rewritten: Any, form: Callable[..., Any], dtype: torch.dtype
) -> None:
    shapes = (_drawn(2, 3, 5, 8), _drawn(2, 1, 5, 8, seed=1), _drawn(2, 1, 5, 8, seed=2))
    tensors = [t.to(dtype) for t in shapes]
    grown = grow(form, *tensors)
    assert _names(grown) == [("rope", "rope_interleaved")]
    assert len(grown.plans) == 1
    _is_right(grown, rewritten, form, *tensors)


@pytest.mark.parametrize("batch", BATCHES)
def test_a_rotation_of_a_part_of_the_row(grow: Any, rewritten: Any, batch: int) -> None:
    """As GPT-J has it: the first columns turn, the rest passes."""

    def form(q: Any, cos: Any, sin: Any) -> Any:
        part = q[..., :8]
        return torch.cat((part * cos + _turned(part) * sin, q[..., 8:]), -1)

    tensors = (_drawn(batch, 5, 3, 12), _drawn(batch, 5, 1, 8, seed=1), _drawn(batch, 5, 1, 8))
    grown = grow(form, *tensors)
    assert _names(grown) == [("rope", "rope_interleaved")]
    _is_right(grown, rewritten, form, *tensors)


@pytest.mark.parametrize(
    "form",
    [
        lambda q, c, s: q * c + torch.stack((-q[..., ::2], q[..., 1::2]), -1).flatten(-2) * s,
        lambda q, c, s: q * c + torch.stack((q[..., 1::2], q[..., ::2]), -1).flatten(-2) * s,
        lambda q, c, s: q * c + torch.stack((-q[..., 4:], q[..., :4]), -1).flatten(-2) * s,
        lambda q, c, s: q * c - torch.stack((-q[..., 1::2], q[..., ::2]), -1).flatten(-2) * s,
    ],
)
def test_what_is_no_rotation_of_neighbours(grow: Any, form: Callable[..., Any]) -> None:
    """Neighbours in their old places, no sign, halves, a difference."""
    tensors = (_drawn(2, 3, 5, 8), _drawn(2, 1, 5, 8, seed=1), _drawn(2, 1, 5, 8, seed=2))
    assert _names(grow(form, *tensors)) == []
