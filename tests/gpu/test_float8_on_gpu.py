"""8-bit floating tensors on a CUDA device: every code, every midpoint, beyond the largest."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import planner
from fusion_kernels.library import FusedOperator, define
from planner.cost.devices import device_for
from planner.fusion.candidate import Candidate
from planner.fusion.places import find_places
from planner.fusion.plan import write_kernel
from planner.verify import verify_region

pytestmark = pytest.mark.gpu

DTYPES = [torch.float8_e4m3fn, torch.float8_e5m2]


class Dequantized(nn.Module):
    def forward(self, codes: Tensor, scale: Tensor) -> Tensor:
        return codes.to(torch.float32) * scale


class Quantized(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return (x * scale).to(self.dtype)


def _kernel(module: nn.Module, tensors: tuple[Tensor, ...], folder: Path) -> FusedOperator:
    return _place(module, tensors, folder)[1]


def _place(
    module: nn.Module, tensors: tuple[Tensor, ...], folder: Path
) -> tuple[Candidate, FusedOperator]:
    captured = planner.capture(module.eval(), tensors)
    ((way, *_),), _ = find_places(captured.program, device_for("cuda:0"), "cuda:0")
    return way, define(way.source, write_kernel(way.source, folder))


def _values(dtype: torch.dtype) -> Tensor:
    """Every value, every midpoint, a float32 step beside either, and what lies past the largest."""
    finite = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    finite = finite[finite.isfinite()].unique()
    past = torch.finfo(dtype).max * torch.tensor([1.01, 29 / 28, 1.05, 1.0714286, 1.1, 2.0])
    odd = torch.tensor([0.0, -0.0, 1e-30, 3e38, torch.inf, torch.nan])
    exact = torch.cat([finite, (finite[1:] + finite[:-1]) / 2, past, -past, odd, -odd])
    up, down = (torch.nextafter(exact, torch.tensor(to)) for to in (torch.inf, -torch.inf))
    return torch.cat([exact, up, down]).to("cuda")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_code_is_the_value_that_eager_makes_of_it(dtype: torch.dtype, tmp_path: Path) -> None:
    codes = torch.arange(256, dtype=torch.uint8, device="cuda").view(dtype)
    scale = torch.ones(256, device="cuda")
    operator = _kernel(Dequantized(), (codes, scale), tmp_path)
    for _ in range(3):  # the second and third repeat the launch
        out = operator.overload(codes, scale)
        torch.testing.assert_close(out, codes.float(), rtol=0, atol=0, equal_nan=True)
    assert operator.recorded(codes, scale) is not None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_value_and_midpoint_becomes_eagers_code(dtype: torch.dtype, tmp_path: Path) -> None:
    x = _values(dtype)
    scale = torch.ones_like(x)
    operator = _kernel(Quantized(dtype), (x, scale), tmp_path)
    expected = x.to(dtype)
    for _ in range(3):
        codes = operator.overload(x, scale)
        assert codes.dtype is dtype
        torch.testing.assert_close(codes.float(), expected.float(), rtol=0, atol=0, equal_nan=True)
    assert operator.recorded(x, scale) is not None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_both_ways_keep_the_contract(dtype: torch.dtype, tmp_path: Path) -> None:
    x, scale = torch.randn(16, 257, device="cuda"), torch.rand(257, device="cuda")
    calls = ((Quantized(dtype), (x, scale)), (Dequantized(), (x.to(dtype), scale)))
    for module, tensors in calls:
        way, operator = _place(module, tensors, tmp_path)
        rows = verify_region(way.lowered, operator, "cuda:0", 0)
        assert rows
        assert [row for row in rows if not row.passed] == []
