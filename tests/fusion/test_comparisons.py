"""Comparisons decide as eager does where a number or another dtype is rounded first."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from planner.fusion.subgraph import run_in_float64

TIES = {
    "bfloat16": (torch.bfloat16, 0.1),
    "float16": (torch.float16, 0.1),
    "float32": (torch.float32, 0.3),
    "an integer": (torch.bfloat16, 257),
    "beyond the dtype": (torch.float16, 70000.0),
}
OPERATORS = ("eq", "ne", "lt", "le", "gt", "ge", "greater_equal")


def _case(name: str, op: str) -> tuple[Any, Tensor]:
    dtype, number = TIES[name]
    x = torch.tensor([number - 1, number, number + 1, 0.0], dtype=torch.float64).to(dtype)
    return lambda x: torch.logical_not(getattr(torch, op)(x, number)), x


@pytest.mark.parametrize("name", TIES)
@pytest.mark.parametrize("op", OPERATORS)
def test_the_float64_reference_rounds_a_number(trace: Any, name: str, op: str) -> None:
    form, x = _case(name, op)
    out = run_in_float64(trace(form, x), [x])
    assert torch.equal(torch.as_tensor(out), form(x))


@pytest.mark.parametrize("name", TIES)
@pytest.mark.parametrize("op", OPERATORS)
def test_a_region_rounds_a_number(grow: Any, rewritten: Any, name: str, op: str) -> None:
    form, x = _case(name, op)
    grown = grow(form, x)
    assert len(grown.regions) == 1
    assert torch.equal(rewritten(grown)(x), form(x))


def _of_other_dtypes(x: Tensor, n: Tensor, number: Tensor) -> Any:
    return torch.logical_and(x == n, x >= number)


def _mixed() -> tuple[Tensor, Tensor, Tensor]:
    return torch.tensor([2048.0, 0.1]).half(), torch.tensor([2049, 0]), torch.tensor(0.1)


def test_a_tensor_of_another_dtype_is_rounded(trace: Any, grow: Any, rewritten: Any) -> None:
    tensors = _mixed()
    expected = _of_other_dtypes(*tensors)
    assert expected.tolist() == [True, False]
    exact = run_in_float64(trace(_of_other_dtypes, *tensors), tensors)
    assert torch.equal(torch.as_tensor(exact), expected)
    grown = grow(_of_other_dtypes, *tensors)
    assert len(grown.regions) == 1
    assert torch.equal(rewritten(grown)(*tensors), expected)


def test_what_the_region_computes_itself_is_not_rounded(grow: Any, rewritten: Any) -> None:
    """Only what the comparison converts is: a sum in bfloat16 goes on in float32."""
    x = torch.tensor([1.0]).bfloat16()
    out = rewritten(grow(lambda x: (x + 2**-10) > 1, x))(x)
    assert out.tolist() == [True]
