"""Each variant of each named rule is found, and what only looks like it is refused with the right
reason and node.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import gelu, layer_norm

X, R = torch.randn(4, 8), torch.randn(4, 8)
BIAS, WEIGHT, SHIFT = torch.randn(8), torch.randn(8), torch.randn(8)

GELU_VARIANTS = [
    ("bias_gelu{}_residual", lambda a, x, b, r: gelu(x + b, approximate=a) + r),
    ("bias_gelu{}_residual", lambda a, x, b, r: r + gelu(b + x, approximate=a)),
    ("gelu{}_residual", lambda a, x, b, r: gelu(x, approximate=a) + r * b),
    ("gelu{}_residual", lambda a, x, b, r: r * b + gelu(x, approximate=a)),
    ("bias_gelu{}", lambda a, x, b, r: gelu(x + b, approximate=a) * r),
    ("bias_gelu{}", lambda a, x, b, r: gelu(b + x, approximate=a) * r),
]

NORM_VARIANTS = [
    ("bias_add_layer_norm", lambda x, b, r, w, s: layer_norm((x + b) + r, [8], w, s)),
    ("bias_add_layer_norm", lambda x, b, r, w, s: layer_norm(r + (b + x), [8], w, s)),
    ("add_layer_norm", lambda x, b, r, w, s: layer_norm((x - b) + r, [8], w, s)),
    ("add_layer_norm", lambda x, b, r, w, s: layer_norm(r + (x - b), [8], w, s)),
]
AFFINE = [(True, True), (True, False), (False, True), (False, False)]


@pytest.mark.parametrize("form", ["none", "tanh"])
@pytest.mark.parametrize(("name", "function"), GELU_VARIANTS)
def test_every_gelu_variant_matches(
    grow: Any, form: str, name: str, function: Callable[..., Any]
) -> None:
    grown = grow(lambda x, b, r: function(form, x, b, r), X, BIAS, R)
    suffix = "" if form == "none" else "_tanh"
    assert [(m.rule, m.variant) for m in grown.matches] == [("gelu_residual", name.format(suffix))]


@pytest.mark.parametrize("affine", AFFINE, ids=str)
@pytest.mark.parametrize(("name", "function"), NORM_VARIANTS)
def test_every_norm_variant_matches_affine_or_not(
    grow: Any, affine: tuple[bool, bool], name: str, function: Callable[..., Any]
) -> None:
    def form(x: Any, b: Any, r: Any, w: Any, s: Any) -> Any:
        return function(x, b, r, w if affine[0] else None, s if affine[1] else None)

    grown = grow(form, X, BIAS, R, WEIGHT, SHIFT)
    assert [(m.rule, m.variant) for m in grown.matches] == [("add_layer_norm", name)]
    (match,) = grown.matches
    assert [match.bindings[n] is not None for n in ("norm_weight", "norm_bias")] == [*affine]


@pytest.mark.parametrize(("function"), [v[1] for v in GELU_VARIANTS])
def test_the_bindings_are_what_stands_in_the_graph(grow: Any, function: Any) -> None:
    grown = grow(lambda x, b, r: function("none", x, b, r), X, BIAS, R)
    (match,) = grown.matches
    if "bias" in match.bindings:
        assert match.shape("bias") == (8,)
    assert match.shape("x") == (4, 8)
    assert match.root.target in (torch.ops.aten.add.Tensor, torch.ops.aten.gelu.default)


def test_the_smaller_side_of_a_sum_may_come_first(grow: Any) -> None:
    positions = torch.randn(1, 3, 8)
    grown = grow(lambda p, x: layer_norm(p + x, [8]), positions, torch.randn(2, 3, 8))
    assert [m.variant for m in grown.matches] == ["add_layer_norm"]


def test_any_eps_is_taken_over(grow: Any, rewritten: Any) -> None:
    grown = grow(lambda x, r: layer_norm(x + r, [8], eps=0.5), X, R)
    assert grown.matches[0].bindings["eps"] == 0.5
    torch.testing.assert_close(rewritten(grown)(X, R), layer_norm(X + R, [8], eps=0.5))


def test_a_sum_read_elsewhere_becomes_a_second_output(grow: Any, rewritten: Any) -> None:
    def form(x: Any, r: Any) -> Any:
        h = x + r
        return layer_norm(h, [8]), h.cumsum(0)

    grown = grow(form, X, R)
    assert len(grown.plans[0].lowered.outputs) == 2
    torch.testing.assert_close(rewritten(grown)(X, R), form(X, R))


def test_the_same_tensor_on_both_sides_matches(grow: Any, rewritten: Any) -> None:
    grown = grow(lambda x: layer_norm(x + x, [8]), X)
    assert grown.matches
    torch.testing.assert_close(rewritten(grown)(X), layer_norm(X + X, [8]))


def test_a_residual_from_inside_the_match_is_no_input(grow: Any, rewritten: Any) -> None:
    def form(x: Any, b: Any) -> Any:
        h = x + b
        return gelu(h) + h

    grown = grow(form, X, BIAS)
    assert len(grown.plans[0].lowered.inputs) == 2
    torch.testing.assert_close(rewritten(grown)(X, BIAS), form(X, BIAS))


NEAR_MISSES = [
    (
        lambda x, r: torch.add(gelu(x), r, alpha=2),
        "gelu_residual",
        "alpha is 2, the rule needs 1",
        "add",
    ),
    (
        lambda x, r: torch.add(r, gelu(x, approximate="tanh"), alpha=0.5),
        "gelu_residual",
        "alpha is 0.5, the rule needs 1",
        "add",
    ),
    (lambda x, _r: gelu(x) + 1.0, "gelu_residual", "residual is the number 1.0", "add"),
    (
        lambda x, _r: gelu(x, approximate="tanh") + 1.0,
        "gelu_residual",
        "gelu_tanh_residual: residual is the number 1.0",
        "add",
    ),
    (lambda x, r: gelu(x + r), "gelu_residual", "bias of shape (4, 8) is not a vector", "r_1"),
    (
        lambda x, r: gelu(x[0]) + r,
        "gelu_residual",
        "x of shape (8,) is broadcast to (4, 8)",
        "add",
    ),
    (
        lambda x, r: gelu(x[:, :1] + r[0]) - r,
        "gelu_residual",
        "x of shape (4, 1) is broadcast to (4, 8)",
        "gelu",
    ),
    (
        lambda x, r: layer_norm(torch.add(x, r, alpha=2), [8]),
        "add_layer_norm",
        "alpha is 2, the rule needs 1",
        "add",
    ),
    (lambda x, _r: layer_norm(x + 2.0, [8]), "add_layer_norm", "residual is the number 2.0", "add"),
    (
        lambda x, r: layer_norm(x + r, [4, 8], x, r),
        "add_layer_norm",
        "norm_weight of shape (4, 8) is not a vector",
        "x_1",
    ),
    (
        lambda x, r: layer_norm(x[:, :1] + r[:1], [8]),
        "add_layer_norm",
        "x of shape (4, 1) and the residual of shape (1, 8) are both broadcast to (4, 8)",
        "layer_norm",
    ),
]


@pytest.mark.parametrize(("function", "rule", "reason", "node"), NEAR_MISSES)
def test_a_near_miss_keeps_its_reason_and_node(
    grow: Any, function: Any, rule: str, reason: str, node: str
) -> None:
    grown = grow(function, X, R)
    assert grown.matches == ()
    (found,) = [m for m in grown.mismatches if m.rule == rule]
    assert found.stage == "pattern"
    assert reason in found.reason
    assert found.node == node


K = math.sqrt(2 / math.pi)
OTHER_ACTIVATIONS = {
    "tanh with 0.044": lambda x, r: 0.5 * x * (1 + torch.tanh(K * (x + 0.044 * x**3))) + r,
    "sigmoid with 1.7": lambda x, r: x * torch.sigmoid(1.7 * x) + r,
    "erf of x": lambda x, r: 0.5 * x * (1 + torch.erf(x)) + r,
    "no half": lambda x, r: x * (1 + torch.erf(x * math.sqrt(0.5))) + r,
}


@pytest.mark.parametrize("name", OTHER_ACTIVATIONS)
def test_other_activations_are_fused_as_what_they_are(grow: Any, rewritten: Any, name: str) -> None:
    """They differ from GELU by 4e-4 to 2e-2, far over what a kernel may differ by."""
    function = OTHER_ACTIVATIONS[name]
    x, r = 3 * torch.randn(64, 8, generator=torch.Generator().manual_seed(0)), torch.randn(64, 8)
    grown = grow(function, x, r)
    assert grown.matches == ()
    assert [plan.rule for plan in grown.plans] == ["pointwise_chain"]
    torch.testing.assert_close(rewritten(grown)(x, r), function(x, r), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("form", ["none", "tanh"])
def test_the_two_forms_are_not_mistaken_for_each_other(
    grow: Any, rewritten: Any, form: str
) -> None:
    x, r = 3 * torch.randn(64, 8), torch.zeros(64, 8)
    grown = grow(lambda x, r: gelu(x, approximate=form) + r, x, r)
    out = rewritten(grown)(x, r).double()
    own = gelu(x.double(), approximate=form)
    other = gelu(x.double(), approximate="tanh" if form == "none" else "none")
    assert (out - own).abs().max() < 5e-6
    assert (out - other).abs().max() > 1e-4


def test_a_node_belongs_to_one_match_only(grow: Any) -> None:
    def form(x: Any, b: Any, r: Any) -> Any:
        return layer_norm(gelu(x + b) + r, [8])

    grown = grow(form, X, BIAS, R)
    assert [m.variant for m in grown.matches] == ["bias_gelu", "add_layer_norm"]
    nodes = [node for match in grown.matches for node in match.nodes]
    assert len(nodes) == len(set(nodes))


def test_nothing_alike_gives_no_mismatch(grow: Any) -> None:
    grown = grow(lambda x, r: layer_norm(x * r, [8]) + torch.relu(x), X, R)
    assert grown.matches == grown.mismatches == ()
