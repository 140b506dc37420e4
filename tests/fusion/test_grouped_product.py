"""Grouped products against torch's own operator, which takes no float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import export

from planner.fusion.grouped_product import grouped_product
from planner.fusion.subgraph import run_in_float64

# Left, right, ends of the groups; torch asks for strides that 16 bytes divide.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], list[int] | None]] = {
    "rows in groups, one of them empty": ((24, 16), (4, 16, 8), [5, 5, 16, 24]),
    "columns in groups": ((3, 8, 16), (16, 24), [4, 20, 24]),
    "cut along K": ((8, 32), (32, 16), [4, 28, 32]),
    "one matrix each": ((3, 8, 16), (3, 16, 8), None),
}


@pytest.mark.parametrize("name", CASES)
def test_each_form_is_what_torch_computes(name: str) -> None:
    left_shape, right_shape, ends = CASES[name]
    left, right = torch.randn(left_shape), torch.randn(right_shape)
    offs = None if ends is None else torch.tensor(ends, dtype=torch.int32)
    wanted = torch._grouped_mm(left, right, offs=offs)
    found = grouped_product(left.double(), right.double(), offs)
    assert found.dtype is torch.float64
    torch.testing.assert_close(found.float(), wanted, rtol=1e-5, atol=1e-5)


def test_rows_behind_the_last_group_are_zero() -> None:
    offs = torch.tensor([2, 3], dtype=torch.int32)
    found = grouped_product(torch.randn(5, 4).double(), torch.randn(2, 4, 3).double(), offs)
    assert torch.equal(found[3:], torch.zeros(2, 3, dtype=torch.float64))
    assert bool(found[:3].any(dim=1).all())


class Experts(nn.Module):
    """Each run of rows meets a matrix of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 16, 8).bfloat16())

    def forward(self, x: Tensor, offs: Tensor) -> Tensor:
        return torch._grouped_mm(x, self.weight, offs=offs)


def test_a_program_with_one_runs_in_float64() -> None:
    module, x = Experts().eval(), torch.randn(8, 16).bfloat16()
    offs = torch.tensor([3, 8], dtype=torch.int32)
    program = export(module, (x, offs)).run_decompositions({})
    (found,) = run_in_float64(program.graph_module, [module.weight, x, offs])
    wide, weight = x.double(), module.weight.double()
    torch.testing.assert_close(found, torch.cat([wide[:3] @ weight[0], wide[3:] @ weight[1]]))
