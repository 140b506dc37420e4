"""Nothing that the user has is changed by a run: attributes, buffers, inputs, the random state."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from made_up_machine import (
    Applied,
    block_input,
    failed_rows,
    fuse_unraced,
    small_block,
)
from torch import Tensor, nn
from torch.nn.functional import gelu

import planner

# --- nothing the user has is changed ---------------------------------------------------------


def _counting(m: Any, x: Tensor) -> Tensor:
    m.count.add_(1)
    return gelu(x + m.bias) + m.count


def test_a_program_without_kernels_that_counts_is_verified_as_it_is_returned(machine: Any) -> None:
    machine(0.8, 2.0)
    model = Applied(lambda m, x: (m.count.add_(1), gelu(x + m.bias) * m.count)[1]).eval()
    fused = fuse_unraced(model, block_input())
    assert fused.report.outcome is not None
    assert fused.report.outcome.result == "normalized"
    assert failed_rows(fused.report) == []
    assert "numerics" not in {row.stage for row in fused.report.rejections}
    torch.testing.assert_close(fused(block_input()), gelu(block_input() + model.bias))


class Warming(nn.Module):
    """Counts its calls in an attribute that is no buffer, and computes otherwise after four."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.calls = nn.Linear(24, 24), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y: Tensor = gelu(self.fc(x)) * 2
        return y if self.calls < 5 else y * 0


def test_a_measured_audit_leaves_attributes_of_the_module_alone() -> None:
    model = Warming().eval()
    planner.audit(model, (block_input(),), backends=("cpu",))
    assert model.calls == 0


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("measure", [False, True])
def test_a_counting_buffer_counts_the_users_calls_only(measure: bool) -> None:
    model = Applied(_counting).eval()
    fused = fuse_unraced(model, block_input(), measure=measure)
    assert torch.equal(model.count, torch.zeros(24))
    assert torch.equal(fused.count, torch.zeros(24))
    assert fused.fused
    assert failed_rows(fused.report) == []
    eager = copy.deepcopy(model)
    for _ in range(3):
        torch.testing.assert_close(fused(block_input()), eager(block_input()))
    assert torch.equal(model.count, torch.zeros(24))


@pytest.mark.usefixtures("machine")
def test_a_counting_buffer_is_left_alone_when_the_original_comes_back(machine: Any) -> None:
    machine(0.5)
    model = Applied(_counting).eval()
    fused = fuse_unraced(model, block_input())
    assert torch.equal(fused.count, torch.zeros(24))
    torch.testing.assert_close(fused(block_input()), copy.deepcopy(model)(block_input()))
    assert torch.equal(model.count, torch.zeros(24))


def test_a_real_race_leaves_buffers_and_inputs_alone(uncompiled: Any) -> None:
    def form(m: Any, x: Tensor) -> Tensor:
        m.count.add_(1)
        x.add_(1)
        return gelu(x + m.bias) + m.count

    model, x = Applied(form).eval(), block_input()
    with uncompiled():
        fused = fuse_unraced(model, x)
    assert torch.equal(model.count, torch.zeros(24))
    assert torch.equal(fused.count, torch.zeros(24))
    assert torch.equal(x, block_input())
    assert failed_rows(fused.report) == []


@pytest.mark.usefixtures("machine")
def test_the_random_state_is_as_before() -> None:
    model = small_block()
    state = torch.get_rng_state()
    fuse_unraced(model, block_input())
    assert torch.equal(torch.get_rng_state(), state)


# --- random operators --------------------------------------------------------------------------


def _noisy(m: Any, x: Tensor) -> Any:
    doubled = x * 2
    drawn = torch.bernoulli(torch.sigmoid(doubled))
    return drawn, gelu(doubled + torch.rand(5, 24) + m.bias)


@pytest.mark.usefixtures("machine")
def test_random_operators_draw_as_in_eager_and_leave_the_users_state() -> None:
    model, x = Applied(_noisy).eval(), block_input()
    before = torch.get_rng_state()
    fused = fuse_unraced(model, x)
    assert torch.equal(torch.get_rng_state(), before)
    assert fused.report.outcome.result == "fused"
    whole = [row for row in fused.report.numerics if row.subject == "Applied"]
    drawn = [row.error for row in whole if row.case.startswith("output 0")]
    assert drawn == [0.0] * len(drawn)
    torch.manual_seed(3)
    expected = model(x)
    torch.manual_seed(3)
    for out, theirs in zip(fused(x), expected, strict=True):
        torch.testing.assert_close(out, theirs)
