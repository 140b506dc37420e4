"""What depends on nothing is computed once, unless it is random, large, or handed to the caller."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from planner.passes.fold_constants import fold_constants

X = torch.randn(4, 6)


def stored(exported: Any) -> list[Tensor]:
    """Constants that the pass has added."""
    constants = exported.program.constants
    return [value for name, value in constants.items() if name.startswith("folded")]


def test_the_largest_constant_subgraph_becomes_one_tensor(export: Any) -> None:
    exported = export(lambda x: x * (torch.arange(6.0) * 2 + 1).sin(), X)
    assert exported.apply(fold_constants) == ("1 constant subgraphs folded",)
    assert exported.ops() == ["mul.Tensor"]
    assert torch.equal(stored(exported)[0], (torch.arange(6.0) * 2 + 1).sin())


def test_a_value_read_twice_is_stored_once(export: Any) -> None:
    def function(x: Tensor) -> Tensor:
        steps = torch.arange(6.0)
        return x * steps + x.exp() * steps

    exported = export(function, X)
    exported.apply(fold_constants)
    assert len(stored(exported)) == 1


def test_an_expansion_is_stored_before_it_is_expanded(export: Any) -> None:
    exported = export(lambda x: x + torch.arange(6.0).expand(4, 6), X)
    exported.apply(fold_constants)
    assert exported.ops() == ["expand.default", "add.Tensor"]
    assert [value.shape for value in stored(exported)] == [(6,)]


@pytest.mark.parametrize(
    ("rows", "dtype", "folded"),
    [
        (1 << 17, torch.float64, True),
        ((1 << 17) + 1, torch.float64, False),
        (1 << 18, torch.float64, False),
        (1 << 20, torch.bool, True),
    ],
)
def test_nothing_over_a_mebibyte_is_stored(
    export: Any, rows: int, dtype: torch.dtype, folded: bool
) -> None:
    exported = export(lambda x: torch.ones(rows, dtype=dtype) * x, torch.randn(1))
    exported.apply(fold_constants)
    assert bool(stored(exported)) is folded
    assert ("ones.default" not in exported.ops()) is folded


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.rand(6),
        lambda: torch.randn(6) * 2,
        lambda: torch.randint(0, 9, (6,)),
        lambda: torch.randperm(6),
        lambda: torch.rand_like(torch.ones(6)),
        lambda: torch.bernoulli(torch.full((6,), 0.5)),
        lambda: torch.dropout(torch.ones(6), 0.5, True),
    ],
    ids=["rand", "randn", "randint", "randperm", "rand_like", "bernoulli", "dropout"],
)
def test_what_is_drawn_is_drawn_in_every_call(export: Any, draw: Any) -> None:
    exported = export(lambda x: x + draw(), torch.zeros(6))
    fold_constants(exported.program)
    exported.program.graph_module.recompile()
    program = exported.program.module()
    torch.manual_seed(0)
    results = {str(program(torch.zeros(6)).tolist()) for _ in range(8)}
    assert len(results) > 1


@pytest.mark.parametrize("kind", [nn.Parameter, Tensor], ids=["parameter", "buffer"])
def test_what_depends_on_a_weight_is_computed(export: Any, kind: Any) -> None:
    exported = export(lambda x, w: x * (w + 1).exp(), X, w=kind(torch.ones(6)))
    assert exported.apply(fold_constants) == ()
    assert exported.ops() == ["add.Tensor", "exp.default", "mul.Tensor"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x + 1, torch.zeros(3)),
        lambda x: (x + 1, torch.zeros(3).view(3, 1)),
        lambda x: _shared(x, torch.arange(6.0)),
    ],
    ids=["itself", "a_view", "also_read"],
)
def test_a_caller_may_write_into_a_constant_result(export: Any, function: Any) -> None:
    exported = export(function, X)
    exported.apply(fold_constants)
    program = exported.program.module()
    _, first = program(X)
    expected = first.clone()
    first.fill_(9)
    assert torch.equal(program(X)[1], expected)


def _shared(x: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
    return x * steps, steps


def test_a_constant_lies_before_the_inputs_and_after_the_weights(export: Any) -> None:
    exported = export(lambda x, w: x * w + torch.arange(6.0), X, w=torch.ones(6))
    exported.apply(fold_constants)
    kinds = [spec.kind.name for spec in exported.program.graph_signature.input_specs]
    assert kinds == ["BUFFER", "CONSTANT_TENSOR", "USER_INPUT"]


def test_a_program_without_inputs_is_folded_too(export: Any) -> None:
    exported = export(lambda w: w * torch.arange(6.0), w=torch.ones(6))
    exported.apply(fold_constants)
    assert exported.ops() == ["mul.Tensor"]
    assert len(stored(exported)) == 1


def test_a_size_left_open_keeps_what_depends_on_it(export: Any) -> None:
    exported = export(
        lambda x: x + torch.arange(x.shape[0]).float()[:, None],
        X,
        dynamic_shapes=(({0: torch.export.Dim.DYNAMIC},),),
    )
    assert exported.apply(fold_constants) == ()
    exported.require_equal(torch.randn(7, 6))
