"""cuDNN's convolutions with the ReLU after them, and cublasLt's products with an activation, are
taken, keep NaN, and compute what eager does.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.nn.functional import gelu, relu

from planner.passes.activated_linear import activated_linears
from planner.passes.fused_convolution import fused_convolution
from planner.pipeline import capture

pytestmark = pytest.mark.gpu


class Block(nn.Module):
    """Two convolutions of a residual block."""

    def __init__(self, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, stride, 1)
        self.second = nn.Conv2d(channels, channels, 1, bias=False)
        self.shortcut = nn.Conv2d(channels, channels, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return relu(self.second(relu(self.first(x))) + self.shortcut(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(("channels", "size", "options"), [(64, 56, {}), (32, 57, {"stride": 2})])
def test_a_block(channels: int, size: int, options: dict[str, int], memory_format, dtype) -> None:
    block = Block(channels, **options).to("cuda", dtype).to(memory_format=memory_format).eval()
    x = torch.randn(4, channels, size, size, device="cuda", dtype=dtype)
    x = x.to(memory_format=memory_format)
    program = capture(block, (x,)).program
    assert fused_convolution(program) == ("2 convolutions with the ReLU after it, 1 with a sum",)
    _require_equal(block, program, x, (0, 0, 3, 3), (1, 0, 3, 3))


class Pair(nn.Module):
    """Two products without bias and what lies between."""

    def __init__(self, *, tanh: bool) -> None:
        super().__init__()
        self.wi, self.wo = nn.Linear(768, 1024, bias=False), nn.Linear(1024, 257, bias=False)
        self.tanh = tanh

    def forward(self, x: Tensor) -> Tensor:
        h = self.wi(x)
        return self.wo(gelu(h, approximate="tanh") if self.tanh else relu(h))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("tanh", [False, True])
@pytest.mark.parametrize("rows", [1, 300])
def test_a_product(rows: int, tanh: bool, dtype: torch.dtype) -> None:
    pair = Pair(tanh=tanh).to("cuda", dtype).eval()
    x = torch.randn(3, rows, 768, device="cuda", dtype=dtype)
    program = capture(pair, (x,)).program
    notes = activated_linears(program)
    # cublasLt's GELU in float32 is ten times as far from the truth as eager's.
    assert ("apart" in notes[0]) == (tanh and dtype == torch.float32)
    _require_equal(pair, program, x, (0, 0, 3), (1, 0, 3))


def _require_equal(
    module: nn.Module, program: ExportedProgram, x: Tensor, nan: Any, inf: Any
) -> None:
    """The program's NaN and infinities stand where eager's do, and it is no less exact."""
    x[nan], x[inf] = torch.nan, torch.inf
    with torch.no_grad():
        out, wanted = program.module()(x), module(x)
        exact = module.double()(x.double())
    assert torch.equal(out.isnan(), wanted.isnan())
    assert torch.equal(out.isinf(), wanted.isinf())
    assert out.stride() == wanted.stride()
    there = wanted.isfinite()
    error, eager_error = ((v.double() - exact)[there].norm() for v in (out, wanted))
    assert error <= 1.1 * eager_error
