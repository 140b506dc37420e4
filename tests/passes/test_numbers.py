"""Numbers that a forward puts into tensors are given to operators as numbers, dtypes unchanged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from planner.graph.export import capture
from planner.passes.normalize import NORMALIZE
from planner.passes.numbers import write_numbers
from planner.passes.runner import run_passes


class Called(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function, self.scale = function, torch.tensor(3.0)

    def forward(self, x: Tensor) -> Any:
        return self.function(x, self.scale)


def _written(function: Any, x: Tensor) -> tuple[Any, tuple[str, ...]]:
    """The program after the pass, bit-equal to eager, and its notes."""
    module = Called(function).eval()
    program = capture(module, (x,)).program
    run_passes(program, NORMALIZE)
    (record,) = run_passes(program, [("write_numbers", write_numbers)])
    program.validate()
    with torch.no_grad():
        out, wanted = program.module()(x), module(x)
    assert out.dtype == wanted.dtype
    assert torch.equal(out, wanted)
    return program, record.notes


def _scaled(x: Tensor, _: Tensor) -> Tensor:
    """As DeBERTa has it."""
    return x / torch.sqrt(torch.tensor(x.size(-1), dtype=torch.float) * 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_scale_worked_out_in_the_forward_is_a_number(dtype: torch.dtype) -> None:
    program, notes = _written(_scaled, torch.randn(5, 12).to(dtype))
    assert notes == ("1 operator given a number that is known",)
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    assert [str(node.target) for node in calls] == ["aten.div.Tensor"]
    assert calls[0].args[1] == pytest.approx(6.0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, _: x * torch.tensor(0.1, dtype=torch.bfloat16),
        lambda x, scale: x * scale,
        lambda x, _: x * torch.tensor([0.5, 0.25]),
        lambda x, _: torch.tensor(2.0) - x,
    ],
    ids=["other dtype", "attribute", "several", "first"],
)
def test_what_could_change_something_stays(function: Any) -> None:
    assert _written(function, torch.arange(6).view(3, 2))[1] == ()
