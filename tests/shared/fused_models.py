"""Models that the tests of fused modules fuse, and what tells that a call fell back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from planner.fusion.module import FusedModule


class Block(nn.Module):
    """A linear, GELU, a residual and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(gelu(self.fc(x)) + x)
        return out


class Applied(nn.Module):
    """A function of itself and its inputs, with a weight and two buffers."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.bias = nn.Parameter(torch.linspace(-1, 1, 8))
        self.register_buffer("count", torch.zeros(8))
        self.register_buffer("other", torch.ones(8))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def falls_back(fused: FusedModule, reason: str, *args: Any, **kwargs: Any) -> Any:
    before = fused.fallbacks
    fused._warned = False
    with pytest.warns(UserWarning, match="runs the original program") as caught:
        result = fused(*args, **kwargs)
    assert reason in str(caught[0].message)
    assert fused.fallbacks == before + 1
    return result
