"""The bias leaves a linear where a region can take it, and comes back where none did."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.counted import counted
from planner.passes.linear_bias import SPLIT, merge_biases, merge_linear_bias, split_linear_bias

aten = torch.ops.aten
X = torch.randn(3, 4)


def weights() -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {"w": nn.Parameter(torch.randn(5, 4)), "b": nn.Parameter(torch.randn(5))}


def text(exported: Any) -> str:
    return str(exported.program.graph_module.print_readable(print_output=False))


def split_and_check(exported: Any) -> tuple[str, ...]:
    """A sum rounded once more than eager's: within rounding, not bit for bit."""
    notes = split_linear_bias(exported.program)
    exported.program.graph.lint()
    exported.program.graph_module.recompile()
    with torch.no_grad():
        torch.testing.assert_close(
            exported.program.module()(*exported.args), exported.module(*exported.args)
        )
    return notes


FUSABLE = {
    "gelu": lambda x, w, b: F.gelu(F.linear(x, w, b)),
    "layer_norm": lambda x, w, b: F.layer_norm(F.linear(x, w, b), (5,)),
    "added": lambda x, w, b: F.linear(x, w, b) + 1,
    "read_twice": lambda x, w, b: F.gelu(F.linear(x, w, b)) * F.linear(x, w, b).tanh(),
    "two_users": lambda x, w, b: _twice(F.linear(x, w, b)),
}


def _twice(y: Tensor) -> Tensor:
    return F.gelu(y) * y.tanh()


@pytest.mark.parametrize("name", FUSABLE)
def test_split_where_every_user_is_fusable(export: Any, name: str) -> None:
    exported = export(FUSABLE[name], X, **weights())
    count = len([op for op in exported.ops() if op == "linear.default"])
    assert split_and_check(exported) == (
        f"{counted(count, 'bias', 'biases')} taken out of linears",
    )
    marked = [node for node in exported.program.graph.nodes if SPLIT in node.meta]
    assert [node.target for node in marked] == [aten.add.Tensor] * count
    assert all(len(node.args[0].args) == 2 for node in marked)


@pytest.mark.parametrize("name", FUSABLE)
def test_merging_gives_back_the_same_text(export: Any, name: str) -> None:
    exported = export(FUSABLE[name], X, **weights())
    before = text(exported)
    exported.program.graph_module.recompile()
    split_and_check(exported)
    assert text(exported) != before
    exported.apply(merge_linear_bias)
    assert text(exported) == before


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, b: F.linear(x, w, b),
        lambda x, w, b: F.linear(x, w, b).view(-1),
        lambda x, w, b: F.linear(x, w, b).cumsum(-1),
        lambda x, w, b: _and_returned(F.linear(x, w, b)),
        lambda x, w, b: _and_viewed(F.linear(x, w, b)),
        lambda x, w, b: F.gelu(F.linear(x, w)) + b,
        lambda x, w, b: F.gelu(torch.addmm(b, x, w.t())),
    ],
    ids=[
        "returned", "viewed", "cumulated", "fused_and_returned", "fused_and_viewed", "no_bias",
        "addmm",
    ],
)  # fmt: skip
def test_no_split_elsewhere(export: Any, function: Any) -> None:
    exported = export(function, X, **weights())
    before = text(exported)
    assert exported.apply(split_linear_bias) == ()
    assert text(exported) == before


def _and_returned(y: Tensor) -> tuple[Tensor, Tensor]:
    return F.gelu(y), y


def _and_viewed(y: Tensor) -> tuple[Tensor, Tensor]:
    return F.gelu(y), y.view(-1)


def test_a_computed_bias_stands_before_the_linear_again(export: Any) -> None:
    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.gelu(F.linear(x, w, b.exp()))

    exported = export(function, X, **weights())
    split_and_check(exported)
    exponential, linear = exported.node("exp.default"), exported.node("linear.default")
    linear.append(exponential)
    exported.apply(merge_linear_bias)
    assert exported.ops() == ["exp.default", "linear.default", "gelu.default"]


def test_a_linear_that_others_read_without_bias_is_left_alone(export: Any) -> None:
    exported = export(FUSABLE["gelu"], X, **weights())
    split_and_check(exported)
    graph = exported.program.graph
    added = next(node for node in graph.nodes if SPLIT in node.meta)
    linear = added.args[0]
    with graph.inserting_after(linear):
        other = graph.call_function(aten.neg.default, (linear,))
    other.meta = dict(linear.meta)
    assert merge_biases(graph) == 0
    assert linear.args[2:] == ()


def test_a_call_that_inherits_the_mark_is_no_bias(export: Any) -> None:
    exported = export(FUSABLE["gelu"], X, **weights())
    split_and_check(exported)
    graph = exported.program.graph
    added = next(node for node in graph.nodes if SPLIT in node.meta)
    added.target = aten.addcmul.default
    added.args = (added.args[0], added.args[1], added.args[1])
    assert merge_biases(graph) == 0


def test_the_split_bias_keeps_module_and_line(export: Any) -> None:
    exported = export(FUSABLE["gelu"], X, **weights())
    linear = exported.node("linear.default")
    split_linear_bias(exported.program)
    added = next(node for node in exported.program.graph.nodes if SPLIT in node.meta)
    assert added.meta["nn_module_stack"] == linear.meta["nn_module_stack"]
    assert added.meta["stack_trace"] == linear.meta["stack_trace"]
    assert added.meta["val"].shape == (3, 5)
