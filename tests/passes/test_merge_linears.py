"""Linears on one input become one where nobody can tell; values, strides and sharing stay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

from planner.graph.export import capture
from planner.passes.merge_linears import merge_linears
from planner.passes.restride import restrided
from planner.passes.runner import run_passes

LINEAR = "linear.default"
X = torch.randn(2, 5, 8)


def merged(exported: Any) -> tuple[str, ...]:
    """The notes; the program stays equal to eager within rounding, strides as they were."""
    (record,) = run_passes(exported.program, [("merge", merge_linears)])
    exported.program.validate()
    with torch.no_grad():
        actual = exported.program.module()(*exported.args)
        expected = exported.module(*exported.args)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(*((x if isinstance(x, tuple) else (x,)) for x in (actual, expected))):  # noqa: B905
        assert ours.stride() == theirs.stride()
    return record.notes


def weights(*columns: int, bias: bool = True) -> dict[str, Tensor]:
    made: dict[str, Tensor] = {}
    for index, count in enumerate(columns):
        made[f"w{index}"] = nn.Parameter(torch.randn(count, 8))
        if bias:
            made[f"b{index}"] = nn.Parameter(torch.randn(count))
    return made


def qkv(x: Tensor, **w: Tensor) -> Tensor:
    """Eight query heads of two columns; as many of keys and values as there are weights for."""
    heads = [
        F.linear(x, w[f"w{n}"], w.get(f"b{n}")).view(2, 5, -1, 2).transpose(1, 2) for n in range(3)
    ]
    q, k, v = (h.repeat_interleave(8 // h.shape[1], 1) for h in heads)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 5, 16)


def swiglu(x: Tensor, **w: Tensor) -> Tensor:
    gate, up = (F.linear(x, w[f"w{n}"], w.get(f"b{n}")) for n in range(2))
    return F.silu(gate) * up


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("function", "columns"),
    [(qkv, (16, 16, 16)), (qkv, (16, 4, 4)), (swiglu, (257, 257)), (swiglu, (1, 1))],
    ids=["qkv", "grouped", "gate_up", "one_column"],
)
def test_linears_on_one_input_become_one(
    export: Any, function: Any, columns: tuple[int, ...], bias: bool
) -> None:
    exported = export(function, X, **weights(*columns, bias=bias))
    notes = merged(exported)
    assert notes == (f"1 x linears of {'+'.join(map(str, columns))} columns merged",)
    assert exported.ops().count(LINEAR) == 1


@pytest.mark.parametrize("shape", [(8,), (1, 8), (0, 8), (257, 8)], ids=str)
def test_inputs_of_other_ranks_and_sizes(export: Any, shape: tuple[int, ...]) -> None:
    exported = export(swiglu, torch.randn(shape), **weights(3, 3))
    assert len(merged(exported)) == 1


def test_a_strided_input(export: Any) -> None:
    exported = export(swiglu, torch.randn(5, 16)[:, ::2], **weights(3, 3))
    merged(exported)
    assert exported.ops().count(LINEAR) == 1


def test_those_with_bias_and_those_without_are_two_groups(export: Any) -> None:
    def function(x: Tensor, **w: Tensor) -> Tensor:
        biased = F.linear(x, w["w0"], w["b0"]).sin() + F.linear(x, w["w1"], w["b1"]).cos()
        return biased + F.linear(x, w["w2"]).sin() + F.linear(x, w["w3"]).cos()

    exported = export(function, X, **weights(4, 4, 4, 4))
    merged(exported)
    assert exported.ops().count(LINEAR) == 2


def test_a_weight_that_is_read_elsewhere_keeps_its_own(export: Any) -> None:
    def function(x: Tensor, **w: Tensor) -> Tensor:
        return swiglu(x, **w) @ w["w0"] + w["w1"].sum()

    exported = export(function, X, **weights(3, 3))
    merged(exported)
    assert exported.ops().count(LINEAR) == 1


def test_one_weight_used_twice(export: Any) -> None:
    def function(x: Tensor, **w: Tensor) -> Tensor:
        return F.linear(x, w["w0"]).sin() * F.linear(x, w["w0"]).cos()

    exported = export(function, X, **weights(3, bias=False))
    merged(exported)
    assert exported.ops().count(LINEAR) == 1


def _written(x: Tensor, w: Tensor, state: Tensor) -> Tensor:
    y = F.linear(x, w).sin() * F.linear(x, state).cos()
    state.add_(1)
    return y


STAYS: dict[str, tuple[Any, dict[str, Tensor]]] = {
    "returned": (lambda x, w0, w1: (F.linear(x, w0), F.linear(x, w1)), weights(3, 3, bias=False)),
    "a_view_returned": (
        lambda x, w0, w1: (F.linear(x, w0).sin(), F.linear(x, w1).view(-1)),
        weights(3, 3, bias=False),
    ),
    "other_inputs": (
        lambda x, w0, w1: F.linear(x, w0).sin() * F.linear(x.exp(), w1).cos(),
        weights(3, 3, bias=False),
    ),
    "one_after_the_other": (
        lambda x, w0, w1: F.linear(F.linear(x, w0).sin(), w1).sin(),
        weights(8, 8, bias=False),
    ),
    "computed_weight": (
        lambda x, w0, w1: F.linear(x, w0).sin() * F.linear(x, w1 * 2).cos(),
        weights(3, 3, bias=False),
    ),
    "one_biased": (
        lambda x, w0, w1, b0, b1: F.linear(x, w0, b0).sin() * (F.linear(x, w1).cos() + b1),
        weights(3, 3),
    ),
    "written_weight": (_written, {"w": nn.Parameter(torch.ones(3, 8)), "state": torch.ones(3, 8)}),
    "flattened": (
        lambda x, w0, w1: F.linear(x, w0).view(-1).sin() * F.linear(x, w1).view(-1).cos(),
        weights(3, 3, bias=False),
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_cannot_be_merged_stays(export: Any, name: str) -> None:
    function, given = STAYS[name]
    exported = export(function, X, **given)
    before = str(exported.program.graph)
    notes = merged(exported)
    assert str(exported.program.graph) == before
    assert all("left apart" in note for note in notes)


def test_an_open_size_stays(export: Any) -> None:
    exported = export(swiglu, X, dynamic_shapes=(({0: Dim.DYNAMIC},),), **weights(3, 3))
    assert merged(exported) == ()


def test_an_output_that_would_have_other_strides_is_the_reason(export: Any) -> None:
    exported = export(lambda x: x.exp().permute(1, 0).add(1), torch.randn(4, 6))
    node = exported.node("exp.default")
    other = node.meta["val"].new_empty_strided((4, 6), (1, 4))
    assert restrided(exported.program.graph, {node: other}) == "an output would have other strides"
    same = restrided(exported.program.graph, {node: node.meta["val"]})
    assert list(same) == [node]


def test_the_packed_weight_is_the_rows_of_all() -> None:
    module = nn.ModuleDict({"gate": nn.Linear(8, 3), "up": nn.Linear(8, 3)})

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = module

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.parts["gate"](x).sin() * self.parts["up"](x)
            return out

    program = capture(Gated().eval(), (X,)).program
    run_passes(program, [("merge", merge_linears)])
    both = [module["gate"], module["up"]]
    assert torch.equal(program.constants["linear_weight"], torch.cat([m.weight for m in both]))
    assert torch.equal(program.constants["linear_bias"], torch.cat([m.bias for m in both]))
