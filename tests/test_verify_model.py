"""A whole model that differs from eager in one draw is found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu
from torch.utils._python_dispatch import TorchDispatchMode

from planner.pipeline import capture
from planner.verify_model import verify_model, verify_whole

DRAWS = [torch.randn(4, 8, generator=torch.Generator().manual_seed(n)) for n in range(16)]


def _eager(x: Tensor) -> list[Tensor]:
    return [gelu(x), (x * 2).int()]


def _exact(x: Tensor) -> list[Tensor]:
    return [gelu(x.double()), (x * 2).int()]


def test_a_whole_model_that_agrees_passes_output_by_output() -> None:
    rows = verify_model(_eager, _eager, _exact, DRAWS, "net")
    assert all(row.passed for row in rows)
    assert {(row.subject, row.dtype) for row in rows} == {("net", "float32"), ("net", "int32")}
    assert {row.case for row in rows} == {"output 0, 16 draws", "output 1, 16 draws"}


@pytest.mark.parametrize("index", [0, 1])
def test_a_whole_model_that_differs_in_one_draw_fails(index: int) -> None:
    def wrong(x: Tensor) -> list[Tensor]:
        values = _eager(x)
        if torch.equal(x, DRAWS[7]):
            values[index] = values[index] + 1
        return values

    failed = [row for row in verify_model(wrong, _eager, _exact, DRAWS, "net") if not row.passed]
    assert {row.case for row in failed} == {f"output {index}, 16 draws"}


def test_fewer_than_16_draws_are_refused() -> None:
    with pytest.raises(ValueError, match="16 draws"):
        verify_model(_eager, _eager, _exact, DRAWS[:15], "net")


class Weighted(nn.Module):
    """A product with one weight of a shape that nothing else has."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 19))

    def forward(self, x: Tensor) -> Tensor:
        return gelu(x) @ self.weight


class Widenings(TorchDispatchMode):
    """Counts how often a tensor of the weight's shape is brought to float64."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_cast = func is torch.ops.aten._to_copy.default
        if is_cast and result.shape == (8, 19) and result.dtype is torch.float64:
            self.count += 1
        return result


def test_weights_are_brought_to_float64_once_for_all_draws() -> None:
    module, x = Weighted().eval(), torch.randn(4, 8)
    captured = capture(module, (x,))
    twin = captured.source.twin
    with Widenings() as seen:
        rows = verify_whole(twin, twin, captured.program, (x,), {}, "net", "cpu", 0)
    assert all(row.passed for row in rows)
    assert seen.count == 1
