"""Equal pure operators run once; what is random, writes, or keeps results apart runs as often as
written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.export import Dim

from planner.passes.common_subexpressions import common_subexpressions

X = torch.randn(3, 257)


@pytest.mark.parametrize(
    ("function", "op"),
    [
        (lambda x: x.exp() * x.exp().sin(), "exp.default"),
        (lambda x: x.double().sum() + x.double().exp().sum(), "_to_copy.default"),
        (lambda x: x.t().exp() + x.t().sin(), "transpose.int"),
        (lambda x: x.exp()[1:].sum() + x.exp()[1:].sin(), "slice.Tensor"),
        (lambda x: x * torch.arange(257) + x.sin() * torch.arange(257), "arange.default"),
        (lambda x: torch.topk(x, 2)[0] + torch.topk(x, 2)[1], "topk.default"),
        (lambda x: x.clone().exp() + x.clone().sin(), "clone.default"),
        (lambda x: (x.exp(), x.exp() + 1), "exp.default"),
    ],
    ids=["pointwise", "cast", "view", "chain", "made", "several_results", "copy", "one_returned"],
)
def test_equal_calls_run_once(export: Any, function: Callable[[Tensor], Any], op: str) -> None:
    exported = export(function, X)
    before = exported.ops().count(op)
    exported.apply(common_subexpressions)
    assert exported.ops().count(op) == before // 2
    exported.require_equal(torch.randn(3, 257))


@pytest.mark.parametrize(
    ("function", "op"),
    [
        (lambda x: x.exp() + x.sin().exp(), "exp.default"),
        (lambda x: (x + 1).sin() + (x + 2), "add.Tensor"),
        (lambda x: (x * 1).sin() * (x * 1.0), "mul.Tensor"),
        (lambda x: (x * 0.0).exp() + 1 / (x * -0.0), "mul.Tensor"),
        (lambda x: x.double().sum() + x.half().sum(), "_to_copy.default"),
        (lambda x: x.softmax(0) + x.softmax(1), "softmax.int"),
        (lambda x: F.gelu(x) + F.gelu(x, approximate="tanh"), "gelu.default"),
    ],
    ids=["input", "number", "type_of_number", "minus_zero", "dtype", "dim", "keyword"],
)
def test_calls_that_differ_in_an_argument_stay(
    export: Any, function: Callable[[Tensor], Any], op: str
) -> None:
    exported = export(function, X)
    before = exported.ops().count(op)
    exported.apply(common_subexpressions)
    assert exported.ops().count(op) == before


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.exp(), x.exp()),
        lambda x: (x.exp().view(-1), x.exp()),
        lambda x: (x.exp().t(), x.exp()[1:]),
        lambda x: (x.clone(), x.clone()),
        lambda x: (x.exp().split(2)[0], x.exp().split(2)[1]),
    ],
    ids=["fresh", "view", "two_views", "copies", "parts"],
)
def test_results_that_are_returned_apart_stay_apart(export: Any, function: Any) -> None:
    exported = export(function, X)
    before = [op for op in exported.ops() if op in ("exp.default", "clone.default")]
    exported.apply(common_subexpressions)
    assert [op for op in exported.ops() if op in ("exp.default", "clone.default")] == before


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.rand_like(x) - torch.rand_like(x),
        lambda x: torch.bernoulli(x.sigmoid()) - torch.bernoulli(x.sigmoid()),
        lambda x: F.dropout(x, 0.5, True) - F.dropout(x, 0.5, True),
        lambda x: torch.rand(3, 257) - torch.rand(3, 257) + x,
    ],
    ids=["like", "bernoulli", "dropout", "made"],
)
def test_random_numbers_are_drawn_as_often_as_written(export: Any, function: Any) -> None:
    exported = export(function, X)
    common_subexpressions(exported.program)
    exported.program.graph_module.recompile()
    difference = exported.program.module()(X)
    assert difference.ne(X).any()
    assert difference.abs().max() > 1e-3


def test_a_buffer_s_old_and_new_value_are_two(export: Any) -> None:
    def function(x: Tensor, state: Tensor) -> Tensor:
        before = state.exp()
        state.add_(x)
        return before + state.exp()

    exported = export(function, torch.randn(5), state=torch.zeros(5))
    exported.apply(common_subexpressions)
    assert exported.ops().count("exp.default") == 2


def test_a_written_value_and_an_equal_result_stay_apart(export: Any) -> None:
    def function(x: Tensor, state: Tensor) -> Tensor:
        state.copy_(x.exp())
        return x.exp()

    exported = export(function, torch.randn(5), state=torch.zeros(5))
    exported.apply(common_subexpressions)
    assert exported.ops().count("exp.default") == 2


@pytest.fixture
def counter() -> Iterator[torch.library.Library]:
    """`rewrites_test::count(x)` gives another result at each call, `bump(x)` writes into x."""
    library = torch.library.Library("rewrites_test", "FRAGMENT")
    calls: list[int] = []

    def count(x: Tensor) -> Tensor:
        calls.append(1)
        return x + len(calls)

    library.define("count(Tensor x) -> Tensor")
    library.impl("count", count, "CompositeExplicitAutograd")
    library.define("bump(Tensor(a!) x) -> ()")
    library.impl("bump", lambda x: (x.add_(1), None)[1], "CompositeExplicitAutograd")
    yield library
    library._destroy()


def _graph(build: Callable[[torch.fx.Graph, torch.fx.Node], Any]) -> Any:
    graph = torch.fx.Graph()
    graph.output(build(graph, graph.placeholder("x")))

    class Program:
        pass

    program: Any = Program()
    program.graph = graph
    return program


@pytest.mark.usefixtures("counter")
def test_an_operator_of_another_library_runs_as_often_as_written() -> None:
    def build(graph: torch.fx.Graph, x: torch.fx.Node) -> Any:
        target = torch.ops.rewrites_test.count.default
        return graph.call_function(target, (x,)), graph.call_function(target, (x,))

    program = _graph(build)
    assert common_subexpressions(program) == ()


@pytest.mark.usefixtures("counter")
@pytest.mark.parametrize("writes", [True, False])
def test_nothing_is_carried_past_a_write(writes: bool) -> None:
    def build(graph: torch.fx.Graph, x: torch.fx.Node) -> Any:
        before = graph.call_function(torch.ops.aten.exp.default, (x,))
        if writes:
            graph.call_function(torch.ops.rewrites_test.bump.default, (x,))
        after = graph.call_function(torch.ops.aten.exp.default, (x,))
        return graph.call_function(torch.ops.aten.sub.Tensor, (before, after))

    program = _graph(build)
    notes = common_subexpressions(program)
    x = torch.zeros(1)
    out = torch.fx.GraphModule(torch.nn.Module(), program.graph)(x.clone())
    assert (out != 0).all() == writes
    assert bool(notes) != writes


def test_notes_count_what_went(export: Any) -> None:
    exported = export(lambda x: x.exp() * x.exp() * x.exp(), X)
    assert exported.apply(common_subexpressions) == (
        "2 x aten.exp.default computed once instead of again",
    )
    assert exported.apply(common_subexpressions) == ()


def test_with_an_open_size_equal_sizes_are_one(export: Any) -> None:
    exported = export(
        lambda x: x.exp().view(x.shape[0] * 257).sin() + x.exp().view(x.shape[0] * 257),
        X,
        dynamic_shapes=(({0: Dim.DYNAMIC},),),
    )
    exported.apply(common_subexpressions)
    assert exported.ops().count("exp.default") == 1
    assert exported.ops().count("view.default") == 1
    exported.require_equal(torch.randn(5, 257))
