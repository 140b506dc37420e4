"""A model of one chain, and a device of which nothing is known, for tests of plans."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from planner.cost.devices import Device

DEVICE = Device("cpu", "a processor", ("cpu",), {})


class Chain(nn.Module):
    """One pointwise chain of two operators of its input."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)
