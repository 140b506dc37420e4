"""Regions are convex, hold what one kernel can, and everything left alone says why."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx
from torch.nn.functional import gelu, layer_norm

X, R, W = torch.randn(4, 8), torch.randn(4, 8), torch.randn(8, 8)


def _same(grown: Any, rewritten: Any, function: Any, *tensors: torch.Tensor) -> None:
    torch.testing.assert_close(rewritten(grown)(*tensors), function(*tensors))


def test_a_diamond_is_one_region(grow: Any, rewritten: Any) -> None:
    def form(x: Any) -> Any:
        a = x.exp()
        return a.tanh() + a.sin()

    grown = grow(form, X)
    assert grown.regions == [["exp", "tanh", "sin", "add"]]
    _same(grown, rewritten, form, X)


def test_a_path_that_leaves_and_comes_back_keeps_the_two_ends_apart(
    grow: Any, rewritten: Any
) -> None:
    def form(x: Any) -> Any:
        h = x.exp() * 2
        return h + h.cumsum(-1)

    grown = grow(form, X)
    assert grown.regions == [["exp", "mul"]]
    assert ("add", "not convex with mul: a path leaves the region and comes back") in [
        (m.node, m.reason) for m in grown.rejected
    ]
    _same(grown, rewritten, form, X)


def test_two_regions_may_not_wait_for_each_other(grow: Any, rewritten: Any) -> None:
    """Each pair alone is convex; fused both, either would need the other's result first."""

    def form(x: Any, y: Any, w: Any) -> Any:
        a, b = x.exp(), y.sin()
        over_a, over_b = a @ w, b @ w
        return a + over_b, b + over_a

    grown = grow(form, X, R, W)
    assert len(grown.regions) == 1
    assert any("not convex" in m.reason for m in grown.rejected)
    _same(grown, rewritten, form, X, R, W)


def test_a_match_that_is_not_convex_is_refused_and_its_nodes_may_still_chain(
    grow: Any, rewritten: Any
) -> None:
    """The residual is made from the sum inside the match: only the last step is a way around."""

    def form(x: Any, b: Any) -> Any:
        h = x + b
        return gelu(h) + h.cumsum(-1)

    grown = grow(form, X, X[0])
    assert grown.matches
    assert grown.regions == [["add", "gelu"]]
    assert ("gelu_residual", "check", "add_1") in [
        (m.rule, m.stage, m.node) for m in grown.rejected if "not convex" in m.reason
    ]
    _same(grown, rewritten, form, X, X[0])


def test_values_read_elsewhere_become_outputs(grow: Any, rewritten: Any) -> None:
    def form(x: Any, r: Any, w: Any) -> Any:
        h = x + r
        return h.tanh() * 2, h @ w

    grown = grow(form, X, R, W)
    assert [node.name for node in grown.plans[0].lowered.outputs] == ["add", "mul"]
    _same(grown, rewritten, form, X, R, W)


def test_values_returned_by_the_graph_become_outputs(grow: Any, rewritten: Any) -> None:
    def form(x: Any, r: Any) -> Any:
        h = x + r
        return h, h.tanh()

    grown = grow(form, X, R)
    assert len(grown.plans[0].lowered.outputs) == 2
    _same(grown, rewritten, form, X, R)


def test_a_smaller_value_read_elsewhere_stays_outside(grow: Any, rewritten: Any) -> None:
    def form(x: Any, v: Any) -> Any:
        s = v * 2
        return x + s, s

    grown = grow(form, X, X[0])
    assert grown.regions == []
    (refused,) = [m for m in grown.rejected if m.stage == "check"]
    assert "mul of shape (8,) is read elsewhere, the region runs over (4, 8)" in refused.reason
    _same(grown, rewritten, form, X, X[0])


def test_a_smaller_value_read_inside_alone_is_taken_in(grow: Any, rewritten: Any) -> None:
    def form(x: Any, v: Any) -> Any:
        return x + v * 2

    grown = grow(form, X, X[0])
    assert grown.regions == [["mul", "add"]]
    _same(grown, rewritten, form, X, X[0])


def test_lone_operators_name_what_stands_between_them(grow: Any) -> None:
    grown = grow(lambda x: (x * 2).cumsum(0).tanh(), X)
    assert grown.regions == []
    assert [(m.node, m.stage) for m in grown.rejected] == [("mul", "pattern"), ("tanh", "pattern")]
    assert all("single operator" in m.reason for m in grown.rejected)
    assert all("aten.cumsum.default" in m.reason for m in grown.rejected)


def test_a_lone_operator_between_inputs_and_outputs_says_so(grow: Any) -> None:
    grown = grow(lambda x: x.tanh(), X)
    assert "inputs and outputs" in grown.rejected[0].reason


def test_integers_and_booleans_join_and_stay_exact(grow: Any, rewritten: Any) -> None:
    def form(x: Any, n: Any) -> Any:
        m = n * 3 - 1
        return torch.where(m > 4, x, 0.0), m

    n = torch.arange(32).view(4, 8)
    grown = grow(form, X, n)
    assert grown.regions == [["mul", "sub", "gt", "where"]]
    _same(grown, rewritten, form, X, n)


def test_an_integer_bias_matches_and_promotes(grow: Any, rewritten: Any) -> None:
    def form(x: Any, n: Any) -> Any:
        return gelu(x + n)

    n = torch.arange(8)
    grown = grow(form, X, n)
    assert grown.matches
    _same(grown, rewritten, form, X, n)


def test_float64_is_refused_with_its_name(grow: Any) -> None:
    grown = grow(lambda x, r: gelu(x + r[0]) * 2, X.double(), R.double())
    assert grown.regions == []
    assert {m.node for m in grown.rejected if "float64" in m.reason} >= {"gelu", "mul"}


def test_mixed_floats_round_once_at_the_end(grow: Any, rewritten: Any) -> None:
    def form(x: Any, r: Any) -> Any:
        return (x * r).tanh() + 1

    x = X.bfloat16()
    grown = grow(form, x, R)
    assert len(grown.regions) == 1
    _same(grown, rewritten, form, x, R)


def test_a_region_reads_at_most_16_tensors(grow: Any, rewritten: Any) -> None:
    def form(*tensors: Any) -> Any:
        total = tensors[0]
        for tensor in tensors[1:]:
            total = total * tensor
        return total

    tensors = [1 + 0.1 * torch.randn(4, 8) for _ in range(20)]
    grown = grow(form, *tensors)
    counts = [len(plan.lowered.region.inputs) for plan in grown.plans]
    assert max(counts) == 16
    assert sum(counts) == 21
    assert any("17 tensors, more than 16" in m.reason for m in grown.rejected)
    _same(grown, rewritten, form, *tensors)


def test_a_chain_does_not_span_devices(trace: Any, grow_graph: Any) -> None:
    """A scalar that lies on another device is no pointer a kernel may follow."""
    module = trace(lambda x, r: (x * r).tanh(), X, R)
    r = [n for n in module.graph.nodes if n.op == "placeholder"][1]
    r.meta["val"] = torch.empty(4, 8, device="meta")
    grown = grow_graph(module)
    assert grown.regions == []
    assert any("it spans devices ['cpu', 'meta']" in m.reason for m in grown.rejected)


def test_a_row_longer_than_a_block_is_fused(grow: Any, rewritten: Any) -> None:
    def form(x: Any, r: Any) -> Any:
        return layer_norm(x + r, [20000])

    x, r = torch.randn(2, 20000), torch.randn(2, 20000)
    grown = grow(form, x, r)
    assert grown.regions == [["add", "layer_norm"]]
    _same(grown, rewritten, form, x, r)


def test_a_reduction_joins_what_is_before_and_after_it(grow: Any, rewritten: Any) -> None:
    """A norm of no rule's; the sum goes on as a residual."""

    def form(x: Any, r: Any, w: Any) -> Any:
        h = x + r
        return h, w * (h / (h.abs().mean(-1, keepdim=True) + 1e-6))

    grown = grow(form, X, R, X[0])
    assert len(grown.regions) == 1
    assert grown.plans[0].rule == "row_chain"
    assert [node.name for node in grown.plans[0].lowered.outputs] == ["add", "mul"]
    _same(grown, rewritten, form, X, R, X[0])


@pytest.mark.parametrize("alone", [lambda x: layer_norm(x, [8]), lambda x: x.softmax(-1)])
def test_a_norm_or_softmax_is_a_place_of_its_own(grow: Any, rewritten: Any, alone: Any) -> None:
    grown = grow(alone, X)
    assert len(grown.regions) == 1
    _same(grown, rewritten, alone, X)


def test_a_single_sum_is_left_to_eager(grow: Any) -> None:
    grown = grow(lambda x: x.sum(-1, keepdim=True), X)
    assert grown.regions == []
    assert any("single operator" in m.reason for m in grown.rejected)


def test_rows_of_two_kinds_stay_apart(grow: Any, rewritten: Any) -> None:
    def form(x: Any) -> Any:
        h = (x - x.mean(-1, keepdim=True)).exp()
        return h - h.mean((0, 1), keepdim=True)

    grown = grow(form, X)
    assert grown.regions == [["mean", "sub", "exp"], ["mean", "sub"]]
    _same(grown, rewritten, form, X)


@pytest.mark.parametrize("width", [1, 3])
def test_odd_rows_are_fused(grow: Any, rewritten: Any, width: int) -> None:
    x, r = torch.randn(4, width), torch.randn(4, width)

    def form(x: Any, r: Any) -> Any:
        return layer_norm(x + r, [width]) * 2

    grown = grow(form, x, r)
    assert len(grown.regions) == 1
    _same(grown, rewritten, form, x, r)


def test_chains_join_a_match_beside_them(grow: Any, rewritten: Any) -> None:
    def form(x: Any, r: Any) -> Any:
        return torch.relu(layer_norm(x * 2 + r, [8])) - r

    grown = grow(form, X, R)
    assert grown.regions == [["mul", "add", "layer_norm", "relu", "sub"]]
    assert grown.plans[0].rule == "add_layer_norm"
    _same(grown, rewritten, form, X, R)


def test_two_matches_that_share_a_value_are_one_region(grow: Any, rewritten: Any) -> None:
    """What lies between them need not be stored; the region has both names."""

    def form(x: Any, r: Any, b: Any) -> Any:
        return gelu(layer_norm(x + r, [8]) + b)

    grown = grow(form, X, R, X[0])
    (plan,) = grown.plans
    assert plan.rule == "add_layer_norm+gelu_residual"
    assert plan.lowered.region.name == "add_layer_norm_bias_gelu"
    assert [item.name for item in plan.lowered.region.inputs] == ["x", "residual", "bias"]
    _same(grown, rewritten, form, X, R, X[0])


def test_norms_over_different_dimensions_stay_apart(grow: Any, rewritten: Any) -> None:
    def form(x: Any, r: Any) -> Any:
        return layer_norm(x + r, [8]) * 2 + layer_norm(x * r + r, [4, 8]) * 3

    grown = grow(form, X, R)
    assert len(grown.plans) == 2
    _same(grown, rewritten, form, X, R)


def test_multipliers_and_scalars_are_honoured(grow: Any, rewritten: Any) -> None:
    def form(x: Any, r: Any, b: Any, n: Any) -> Any:
        return (
            gelu(torch.add(x, b, alpha=0.5)),
            torch.sub(gelu(x), r, alpha=3),
            gelu(x) + 1.0,
            torch.rsub(torch.nn.functional.silu(x), r, alpha=0.5) * 2,
            2.0 - x * 3,
            gelu(x + n),
        )

    tensors = (X, R, X[0], torch.arange(8))
    _same(grow(form, *tensors), rewritten, form, *tensors)


def test_a_bias_behind_beta_zero_is_not_read(grow: Any, rewritten: Any) -> None:
    def form(x: Any, w: Any, junk: Any) -> Any:
        return gelu(torch.addmm(junk, x, w, beta=0)) * 2

    tensors = (X, W, torch.full((8,), torch.nan))
    grown = grow(form, *tensors)
    assert rewritten(grown)(*tensors).isfinite().all()
    _same(grow(form, *tensors), rewritten, form, *tensors)


def test_every_pointwise_operator_is_in_a_region_or_has_a_reason(grow: Any) -> None:
    def form(x: Any, r: Any, w: Any) -> Any:
        h = gelu(x + r[0]) * r
        y = h.cumsum(0).tanh().cumsum(0)
        return layer_norm(y + (h @ w).exp(), [8]), h.pow(2.5)

    grown = grow(form, X, R, W)
    inside = {node for plan in grown.plans for node in plan.lowered.nodes}
    said = {m.node for m in (*grown.mismatches, *grown.rejected)}
    left: list[fx.Node] = [
        node
        for node in grown.module.graph.nodes
        if node.op == "call_function"
        and str(node.target).split(".")[1] in ("add", "mul", "gelu", "tanh", "exp", "pow")
        and node not in inside
    ]
    assert left
    assert {node.name for node in left} <= said


def test_what_nothing_reads_is_left_alone(trace: Any, grow_graph: Any) -> None:
    module = trace(lambda x, r: (x * r).tanh(), X, R)
    output = next(n for n in module.graph.nodes if n.op == "output")
    output.args = (next(iter(module.graph.nodes)),)
    grown = grow_graph(module)
    assert grown.regions == []
    assert any("nothing reads its result" in m.reason for m in grown.rejected)
