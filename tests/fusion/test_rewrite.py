"""A region's nodes give way to one call, and the graph stays in an order that can run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx
from torch.nn.functional import gelu, layer_norm

from planner.fusion.rewrite import sort
from planner.graph.randomness import drawing_nodes
from planner.passes.linear_bias import SPLIT

X, R, W = torch.randn(4, 8), torch.randn(4, 8), torch.randn(8, 8)


def _names(graph: fx.Graph) -> list[str]:
    return [node.name for node in graph.nodes]


def test_sorting_a_graph_in_order_changes_nothing(trace: Any) -> None:
    graph = trace(lambda x, r: (x.exp() + r).tanh() @ r.t(), X, R).graph
    before = _names(graph)
    sort(graph)
    assert _names(graph) == before


def test_sorting_moves_only_what_stands_too_early(trace: Any) -> None:
    graph = trace(lambda x, r: (x.exp() + r.sin(), x.cos()), X, R).graph
    by_name = {node.name: node for node in graph.nodes}
    by_name["exp"].prepend(by_name["add"])
    sort(graph)
    graph.lint()
    assert _names(graph) == ["x_1", "r_1", "exp", "sin", "add", "cos", "output"]


def test_the_output_stays_last(trace: Any) -> None:
    graph = trace(lambda x: x.exp().sin(), X).graph
    nodes = list(graph.nodes)
    nodes[-1].append(nodes[1])
    sort(graph)
    assert list(graph.nodes)[-1].op == "output"


def test_regions_that_feed_each_other(grow: Any, rewritten: Any) -> None:
    def form(x: Any, r: Any, w: Any) -> Any:
        h = layer_norm(x + r, [8])
        g = gelu(h @ w + w[0])
        return g, layer_norm(g @ w + h, [8])

    grown = grow(form, X, R, W)
    assert len(grown.plans) == 3
    module = rewritten(grown)
    torch.testing.assert_close(module(X, R, W), form(X, R, W))


def test_the_order_in_which_regions_are_replaced_does_not_matter(grow: Any, rewritten: Any) -> None:
    def form(x: Any, r: Any, w: Any) -> Any:
        h = (x + r).tanh()
        g = (h @ w).sigmoid() * h
        return h.sum(), g, (g @ w).sin() + g

    grown = grow(form, X, R, W)
    turned = type(grown)(grown.module, grown.plans[::-1], *(() for _ in range(3)))
    torch.testing.assert_close(rewritten(turned)(X, R, W), form(X, R, W))


def test_several_outputs_are_unpacked_in_order(grow: Any, rewritten: Any) -> None:
    def form(x: Any, r: Any) -> Any:
        a = x + r
        b = a.tanh()
        return b * 2, a, b

    module = rewritten(grow(form, X, R))
    calls = [n for n in module.graph.nodes if str(n.target).startswith("fuseplan.")]
    assert len(calls) == 1
    assert [n.args[1] for n in calls[0].users] == [0, 1, 2]
    torch.testing.assert_close(module(X, R), form(X, R))


def test_the_call_keeps_shape_dtype_and_strides_of_what_it_replaces(
    grow: Any, rewritten: Any
) -> None:
    module = rewritten(grow(lambda x, r: (x.t() * r.t()).bfloat16().exp(), X, R))
    (call,) = [n for n in module.graph.nodes if str(n.target).startswith("fuseplan.")]
    value = call.meta["val"]
    out = module(X, R)
    assert (value.shape, value.dtype) == (out.shape, out.dtype)
    assert (tuple(value.shape), value.dtype) == ((8, 4), torch.bfloat16)


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_kernel_that_ends_with_a_split_bias_is_not_taken_for_one(
    grow: Any, rewritten: Any, outputs: int
) -> None:
    def form(x: Any, r: Any) -> Any:
        a = x.exp()
        return (a + r, a) if outputs == 2 else a + r

    grown = grow(form, X, R)
    grown.plans[0].lowered.nodes[-1].meta[SPLIT] = "linear"
    module = rewritten(grown)
    assert not any(SPLIT in node.meta for node in module.graph.nodes)


def _drawing(x: torch.Tensor) -> Any:
    """The last sum joins the first product: what is drawn in between would come after it."""
    a = x * 2
    return torch.bernoulli(torch.sigmoid(a)), (a + torch.rand(4, 8)) * 0.5


def test_random_operators_keep_their_order(grow: Any, rewritten: Any) -> None:
    fused = rewritten(grow(_drawing, X))
    torch.manual_seed(0)
    expected = _drawing(X)
    torch.manual_seed(0)
    for out, theirs in zip(fused(X), expected, strict=True):
        torch.testing.assert_close(out, theirs)


def test_two_regions_do_not_turn_two_draws_around(grow: Any, rewritten: Any) -> None:
    """Only the draws' order stands between the first sum and the last product."""

    def form(x: torch.Tensor, r: torch.Tensor) -> Any:
        a = x.exp()
        b = torch.bernoulli(a.sigmoid().cumsum(-1) / 8)
        c = torch.rand(4, 8) * r
        return b, (a + c).tanh(), c

    grown = grow(form, X, R)
    fused = rewritten(grown)
    torch.manual_seed(0)
    expected = form(X, R)
    torch.manual_seed(0)
    for out, theirs in zip(fused(X, R), expected, strict=True):
        torch.testing.assert_close(out, theirs)


def test_dropout_out_of_training_is_no_order(trace: Any) -> None:
    def form(x: torch.Tensor) -> Any:
        first = torch.dropout(x.exp(), 0.5, False)
        return first, torch.dropout(x.sin(), 0.5, False)

    graph = trace(form, X).graph
    assert drawing_nodes(graph) == []
