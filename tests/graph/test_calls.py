"""How a model may be called: any order of keywords, shared and expanded inputs, sizes left open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import planner
from planner.graph.errors import CaptureDiffers, CaptureFailed, WrongInputs
from planner.graph.twin import clone_inputs, separate_inputs


class Difference(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left.exp() - right


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        b, t, h = x.shape
        y = F.gelu(self.linear(x.reshape(b * t, h))).reshape(b, t, h)
        return self.norm(x + y)


class Prefix(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x[: y.shape[0]] * 2, y + 1


@dataclass
class Pair:
    first: Tensor
    second: Tensor


class OfPair(nn.Module):
    def forward(self, pair: Pair) -> Tensor:
        pair.first.add_(1)
        return pair.first * pair.second


def open_sizes(*names: str) -> dict[str, dict[int, Any]]:
    return {name: {0: torch.export.Dim.DYNAMIC} for name in names}


def test_keywords_in_another_order_reach_their_parameters() -> None:
    left, right = torch.randn(3), torch.randn(3)
    captured = planner.capture(Difference().eval(), (), {"right": right, "left": left})
    program = captured.program.module()
    assert torch.equal(program(right=right, left=left), left.exp() - right)


def test_one_tensor_given_twice_is_two_inputs_of_the_program() -> None:
    x, y = torch.randn(3), torch.randn(3)
    program = planner.capture(Difference().eval(), (x, x)).program.module()
    assert torch.equal(program(x, y), x.exp() - y)


def test_an_input_that_is_written_and_given_twice_is_refused() -> None:
    class Writes(nn.Module):
        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return left.add_(1) * right

    x = torch.ones(3)
    with pytest.raises(CaptureDiffers):
        planner.capture(Writes().eval(), (x, x))
    assert torch.equal(x, torch.ones(3))


@pytest.mark.parametrize(
    "x",
    [torch.randn(1, 4).expand(3, 4), torch.randn(4, 3).t(), torch.randn(3, 8)[:, ::2]],
    ids=["expanded", "transposed", "strided"],
)
def test_layouts_of_inputs_are_kept(x: Tensor) -> None:
    captured = planner.capture(Difference().eval(), (x, x + 1))
    assert captured.graph.nodes[0].inputs[0].stride == x.stride()
    assert torch.equal(captured.program.module()(x, x + 1), x.exp() - (x + 1))


def test_inputs_that_require_grad_are_taken_and_keep_their_graph() -> None:
    leaf = torch.randn(3, requires_grad=True)
    computed = leaf * 2
    program = planner.capture(Difference().eval(), (leaf, computed)).program
    assert not program.example_inputs[0][0].requires_grad
    assert computed.grad_fn is not None
    assert leaf.grad is None


def test_inputs_made_in_inference_mode_are_taken() -> None:
    with torch.inference_mode():
        x = torch.randn(3)
        captured = planner.capture(Difference().eval(), (x, x + 1))
    assert len(captured.graph) == 2


def test_a_dataclass_as_input_is_taken_and_not_written_to() -> None:
    pair = Pair(torch.ones(3), torch.full((3,), 3.0))
    program = planner.capture(OfPair().eval(), (pair,)).program.module()
    assert torch.equal(pair.first, torch.ones(3))
    assert torch.equal(program(pair), torch.full((3,), 6.0))


@pytest.mark.parametrize("rows", [3, 1, 0])
def test_a_batch_left_open_serves_others(rows: int) -> None:
    torch.manual_seed(0)
    model = Block().eval()
    batch = {"x": {0: torch.export.Dim("batch", min=0)}}
    program = planner.capture(model, (torch.randn(2, 7, 8),), None, batch).program.module()
    x = torch.randn(rows, 7, 8)
    with torch.no_grad():
        assert torch.equal(program(x), model(x))


@pytest.mark.parametrize("size", [torch.export.Dim("batch"), torch.export.Dim.DYNAMIC])
@pytest.mark.parametrize("rows", [3, 1, 0])
def test_an_example_of_one_row_leaves_the_batch_open(size: Any, rows: int) -> None:
    model = Block().eval()
    captured = planner.capture(model, (torch.randn(1, 7, 8),), None, {"x": {0: size}})
    assert captured.source.args[0].shape == (2, 7, 8)
    x = torch.randn(rows, 7, 8)
    with torch.no_grad():
        assert torch.equal(captured.program.module()(x), model(x))


class OfFour(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.ones(4, 1)


def test_a_size_that_the_model_fixes_cannot_be_left_open_and_the_message_says_what_to_do() -> None:
    sizes = {"x": {0: torch.export.Dim("rows")}}
    with pytest.raises(CaptureFailed, match=r"rows.*constant.*4.*out of dynamic_shapes"):
        planner.capture(OfFour().eval(), (torch.randn(4, 2),), None, sizes)


def test_a_size_that_may_be_fixed_and_is_is_told() -> None:
    sizes = {"x": {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}}
    captured = planner.capture(OfFour().eval(), (torch.randn(4, 2),), None, sizes)
    assert captured.passes[0].notes == (
        "dimension 0 of 'x' was to stay open, and the model fixes it at 4",
        "open sizes: dimension 1 of 'x' from 0",
    )


def test_an_open_dimension_without_elements_needs_another_example() -> None:
    with pytest.raises(WrongInputs, match=r"dimension 0 .*'x'.* has no elements"):
        planner.capture(Block().eval(), (torch.randn(0, 7, 8),), None, open_sizes("x"))


def test_open_sizes_of_another_form_than_the_call_are_refused() -> None:
    with pytest.raises(WrongInputs, match=r"dynamic_shapes does not have the form of the inputs"):
        planner.capture(Block().eval(), (torch.randn(2, 7, 8),), None, open_sizes("y"))


def test_a_fixed_batch_of_one_refuses_others() -> None:
    program = planner.capture(Block().eval(), (torch.randn(1, 7, 8),)).program.module()
    with pytest.raises(AssertionError, match=r"x\.size\(\)\[0\] == 1"):
        program(torch.randn(3, 7, 8))


def test_sizes_that_are_equal_in_the_example_only_stay_apart() -> None:
    program = planner.capture(
        Prefix().eval(), (torch.randn(4, 3), torch.randn(4, 3)), None, open_sizes("x", "y")
    ).program.module()
    x, y = torch.randn(6, 3), torch.randn(2, 3)
    first, second = program(x, y)
    assert torch.equal(first, x[:2] * 2)
    assert torch.equal(second, y + 1)


def test_random_operators_draw_anew_in_each_call() -> None:
    class Noise(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.rand(3)

    program = planner.capture(Noise().eval(), (torch.zeros(3),)).program.module()
    assert not torch.equal(program(torch.zeros(3)), program(torch.zeros(3)))


def test_copies_of_inputs_keep_what_they_share() -> None:
    x = torch.arange(6.0)
    whole, part, again = clone_inputs([x, x[2:4], x])
    whole.zero_()
    assert again is whole
    assert torch.equal(part, torch.zeros(2))
    assert torch.equal(x, torch.arange(6.0))


def test_separate_copies_share_nothing() -> None:
    x = torch.arange(6.0)
    whole, part, again = separate_inputs([x, x[2:4], x])
    whole.zero_()
    assert torch.equal(again, torch.arange(6.0))
    assert torch.equal(part, torch.tensor([2.0, 3.0]))
