"""cuDNN's convolution with the ReLU after it is taken, keeps NaN, and computes what eager does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from planner.passes.fused_convolution import fused_convolution
from planner.pipeline import capture

pytestmark = pytest.mark.gpu


class Block(nn.Module):
    """Two convolutions of a residual block."""

    def __init__(self, channels: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, stride, 1, groups=groups)
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
    x[0, 0, 3, 3], x[1, 0, 3, 3] = torch.nan, torch.inf
    with torch.no_grad():
        out, wanted, exact = program.module()(x), block(x), block.double()(x.double())
    assert torch.equal(out.isnan(), wanted.isnan())
    assert torch.equal(out.isinf(), wanted.isinf())
    assert out.stride() == wanted.stride()
    there = wanted.isfinite()
    error, eager_error = ((v.double() - exact)[there].abs().max() for v in (out, wanted))
    assert error <= 2 * eager_error
