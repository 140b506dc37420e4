"""Reductions, concatenations and long rows on a CUDA device: the contract in three dtypes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

import planner
from fusion_kernels.library import define
from planner.cost.devices import device_for
from planner.fusion.places import find_places
from planner.fusion.plan import write_kernel
from planner.verify import verify_region

pytestmark = pytest.mark.gpu

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    wide = total.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return total, weight * normed.to(x.dtype)


def _masked_softmax(scores: Tensor, bias: Tensor) -> Tensor:
    return torch.softmax((scores * 0.125 + bias).float(), -1).to(scores.dtype)


def _rotated(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


def _rope(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    q = q.transpose(1, 2)
    return q * cos.unsqueeze(1) + _rotated(q) * sin.unsqueeze(1)


def _partial_rope(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turned, passed = q[..., :16], q[..., 16:]
    return torch.cat((turned * cos + _rotated(turned) * sin, passed), -1) * 1.5


def _prefix_norm(token: Tensor, patches: Tensor, positions: Tensor) -> Tensor:
    whole = torch.cat((token, patches * 2), 1) + positions
    return layer_norm(whole, whole.shape[-1:])


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Four reductions of one row; one value a row goes out beside the rest."""
    mean, spread = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
    largest = (x * 0.1).amax(-1, keepdim=True)
    return largest, (x - mean) / (spread + 1) * largest


CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "add_rms_norm": (_add_rms_norm, ((33, 768), (33, 768), (768,))),
    "add_rms_norm_odd": (_add_rms_norm, ((7, 257), (7, 257), (257,))),
    "masked_softmax": (_masked_softmax, ((2, 4, 65, 129), (2, 1, 1, 129))),
    "log_softmax": (lambda x: torch.log_softmax(x * 2, -1), ((33, 1000),)),
    "softmax_long": (lambda x: torch.softmax(x * 2, -1), ((3, 46336),)),
    "norm_longer": (lambda x, w: layer_norm(x * 2, (131073,), w), ((2, 131073), (131073,))),
    "statistics": (_statistics, ((65, 300),)),
    "norm_over_two": (lambda x: layer_norm(x.transpose(1, 2) * 2, (30, 20)), ((5, 20, 30),)),
    "rope": (_rope, ((2, 65, 4, 64), (2, 65, 64), (2, 65, 64))),
    "partial_rope": (_partial_rope, ((2, 4, 33, 64), (2, 1, 33, 16), (2, 1, 33, 16))),
    "prefix_norm": (_prefix_norm, ((4, 1, 96), (4, 49, 96), (1, 50, 96))),
}


class Of(nn.Module):
    """A module of one function of its inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> Any:
        return self.function(*tensors)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_numerics_contract(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    function, shapes = CASES[name]
    torch.manual_seed(0)
    tensors = tuple(torch.randn(shape, dtype=dtype, device="cuda") for shape in shapes)
    captured = planner.capture(Of(function).eval(), tensors)
    places, _ = find_places(captured.program, device_for("cuda:0"), "cuda:0")
    (way, *_) = max(places, key=lambda ways: len(ways[0].nodes))
    operator = define(way.source, write_kernel(way.source, tmp_path))
    rows = verify_region(way.lowered, operator, "cuda:0", seed=1)
    assert [row for row in rows if not row.passed] == []
