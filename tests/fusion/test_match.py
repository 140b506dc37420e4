"""What a pattern leaves open: grouping and order of products, powers, decimals of constants,
numbers with a name, spellings; and what it does not.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fusion_kernels.rule import FusionRule, Match, Mismatch, Variant
from planner.fusion.match import match_rules

X, Y, W = torch.randn(4, 8), torch.randn(4, 8), torch.randn(8)
K = math.sqrt(2 / math.pi)


def _rule(pattern: Callable[..., Any], examples: dict[str, Any], **more: Any) -> FusionRule:
    return FusionRule("named", (Variant("form", pattern, examples, **more),), lambda _match: None)


@pytest.fixture
def matched(trace: Any) -> Callable[..., tuple[list[Match], list[Mismatch]]]:
    """Matches and mismatches of one rule in a function of some of x, y and w."""

    def match(rule: FusionRule, function: Callable[..., Any]) -> tuple[Any, Any]:
        tensors = {"x": X, "y": Y, "w": W}
        names = inspect.signature(function).parameters
        return match_rules(trace(function, *(tensors[name] for name in names)).graph, [rule])

    return match


CUBED = _rule(lambda x: 0.5 * x * torch.tanh(K * x**3), {"x": (4, 8)})


@pytest.mark.parametrize(
    "written",
    [
        lambda x: 0.5 * x * torch.tanh(K * x**3),
        lambda x: x * (0.5 * torch.tanh(x.pow(3) * K)),
        lambda x: torch.tanh(x * x * (x * K)) * (x / 2),
        lambda x: torch.tanh(K * (torch.square(x) * x)) * 0.5 * x,
        lambda x: (torch.tanh(K * x * x * x) * x * 2) * 0.25,
        lambda x: (0.5 * (x.float() * torch.tanh((K * x**3).double()))).float(),
    ],
)
def test_a_product_may_be_grouped_in_any_way(matched: Any, written: Callable[..., Any]) -> None:
    (match,), _ = matched(CUBED, lambda x: written(x).exp())
    assert match.bindings["x"].name in ("x_1", "to")
    assert match.root.target != torch.ops.aten.exp.default


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (lambda x: x * torch.tanh(K * x**3), "the constant is 1, the rule needs 0.5"),
        (lambda x: 0.5 * x * torch.tanh(K * x**2), "needs 3 factors here"),
        (lambda x: 0.5 * x * torch.tanh(0.7979 * x**3), "the constant is 0.7979"),
    ],
)
def test_what_another_product_lacks_is_named(matched: Any, written: Any, reason: str) -> None:
    found, (missed,) = matched(CUBED, written)
    assert found == ()
    assert reason in missed.reason


@pytest.mark.parametrize("decimals", [8, 10, 16])
def test_a_constant_of_fewer_decimals_is_the_same_constant(matched: Any, decimals: int) -> None:
    number = round(K, decimals)
    found, _ = matched(CUBED, lambda x: 0.5 * x * torch.tanh(number * x**3))
    assert len(found) == 1


@pytest.mark.parametrize("number", [0.79788, 0.798, K * (1 + 3e-6), 0.0, -K])
def test_another_constant_is_not_and_the_report_tells_both(matched: Any, number: float) -> None:
    found, (missed,) = matched(CUBED, lambda x: 0.5 * x * torch.tanh(number * x**3))
    assert found == ()
    assert missed.reason == f"form: the constant is {number:.8g}, the rule needs 0.79788456"


CAP = _rule(lambda x, cap: torch.tanh(x / cap) * cap, {"x": (4, 8), "cap": 12.345678})


@pytest.mark.parametrize(
    "written",
    [
        lambda x: torch.tanh(x / 30.0) * 30.0,
        lambda x: 30 * torch.tanh((1 / 30) * x),
        lambda x: torch.tanh(x / 15 / 2) * 10 * 3,
    ],
)
def test_a_named_number_takes_any_value_but_one_at_a_time(matched: Any, written: Any) -> None:
    (match,), _ = matched(CAP, lambda x: written(x))
    assert match.bindings["cap"] == pytest.approx(30.0)


def test_two_values_for_one_number_are_named(matched: Any) -> None:
    found, (missed,) = matched(CAP, lambda x: torch.tanh(x / 30.0) * 50.0)
    assert found == ()
    assert missed.reason == "form: cap is both 30 and 50"


def test_a_factor_of_a_product_may_be_a_product_itself(matched: Any) -> None:
    rule = _rule(lambda x, y: x * torch.sigmoid(y), {"x": (4, 8), "y": (4, 8)})
    (match,), _ = matched(rule, lambda x, y, w: (x * w) * torch.sigmoid(y * w))
    assert [match.bindings[name].target for name in "xy"] == 2 * [torch.ops.aten.mul.Tensor]
    assert len(match.nodes) == 2


def test_every_order_is_tried_until_all_fits(matched: Any) -> None:
    """x stands in both factors: which of them is the sum turns out below the second."""
    rule = _rule(lambda x, w: (x + w) * torch.exp(x), {"x": (4, 8), "w": (4, 8)})
    (match,), _ = matched(rule, lambda x, y: torch.exp(y) * (x + y))
    assert match.bindings["x"].name == "y_1"
    assert match.bindings["w"].name == "x_1"


def test_the_rule_s_check_chooses_among_the_ways(matched: Any) -> None:
    def check(match: Match) -> str | None:
        return None if match.shape("w") == (8,) else "w is no vector"

    pattern = Variant("form", lambda x, w: x * w + 1.0, {"x": (4, 8), "w": (4, 8)})
    rule = FusionRule("named", (pattern,), check)
    for written in (lambda x, w: x * w + 1, lambda x, w: w * x + 1):
        (match,), _ = matched(rule, written)
        assert match.bindings["w"].name == "w_1"
    found, (missed,) = matched(rule, lambda x, y: x * y + 1)
    assert found == ()
    assert missed.reason == "form: w is no vector"


def test_a_refusal_without_a_reason_is_not_reported(matched: Any) -> None:
    pattern = Variant("form", lambda x, w: x * w + 1.0, {"x": (4, 8), "w": (4, 8)})
    rule = FusionRule("named", (pattern,), lambda _match: "")
    assert matched(rule, lambda x, y: x * y + 1) == ((), ())


def test_another_spelling_has_the_same_name(matched: Any) -> None:
    rule = _rule(
        lambda x, w: torch.relu(x) + w,
        {"x": (4, 8), "w": (8,)},
        spellings=(lambda x, w: torch.clamp(x, min=0) + w,),
    )
    for written in (lambda x, w: torch.relu(x) + w, lambda x, w: torch.clamp(x, min=0) + w):
        (match,), _ = matched(rule, written)
        assert match.variant == "form"
    assert matched(rule, lambda x, w: torch.clamp(x, min=1) + w)[0] == ()


def test_a_spelling_may_have_fewer_parameters(matched: Any) -> None:
    rule = _rule(
        lambda x, w: torch.exp(x * w),
        {"x": (4, 8), "w": (8,)},
        spellings=(lambda x: torch.exp(x / 3),),
    )
    (match,), _ = matched(rule, lambda x: torch.exp(x / 3))
    assert set(match.bindings) == {"x"}


def test_a_mask_holds_truth_values(matched: Any) -> None:
    rule = _rule(
        lambda x, mask: torch.exp(x.masked_fill(mask, -1.0)),
        {"x": (4, 8), "mask": (4, 8)},
        masks=frozenset({"mask"}),
    )
    assert len(matched(rule, lambda x, y: torch.exp(x.masked_fill(y > 0, -1.0)))[0]) == 1


@pytest.mark.parametrize("dim", [-1, 1])
def test_a_dimension_is_counted_from_the_end(matched: Any, dim: int) -> None:
    rule = _rule(lambda x: torch.softmax(torch.exp(x), -1), {"x": (4, 8)})
    assert len(matched(rule, lambda x: torch.softmax(torch.exp(x), dim))[0]) == 1
    found, (missed,) = matched(rule, lambda x: torch.softmax(torch.exp(x), 0))
    assert found == ()
    assert missed.reason == "form: dim is -2, the rule needs -1"


def test_a_long_product_is_no_long_search(matched: Any) -> None:
    def long(x: Any) -> Any:
        for _ in range(200):
            x = x * x * 0.5
        return x

    assert matched(CUBED, long)[0] == ()
