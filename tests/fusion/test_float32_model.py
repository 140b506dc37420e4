"""Ill-conditioned results are excused as far as float32 explains them; planted faults are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from float32_model import beyond_float32
from torch import Tensor
from torch.nn.functional import gelu, layer_norm

from fusion_kernels.evaluate import evaluate
from fusion_kernels.ir import Region, Statement
from fusion_kernels.tolerances import check
from planner.fusion.reference import reference
from planner.fusion.subgraph import run_in_float64

SMALL = 1e-3 * torch.randn(5, 17, generator=torch.Generator().manual_seed(0))
TAILS = torch.linspace(-5.5, 2.0, 80).reshape(40, 2)


def _cancelling(x: Tensor) -> Tensor:
    return x - torch.tanh(x)


def _mean_of_norm(x: Tensor) -> Tensor:
    return layer_norm(x, x.shape[-1:]).mean(-1, keepdim=True)


def _tails(x: Tensor) -> Tensor:
    return gelu(x) * 2


def _lost_bits(x: Tensor) -> Tensor:
    scaled = x * 1.1
    return scaled.bfloat16().float() - scaled


def _beyond(grow: Any, function: Any, x: Tensor, change: Callable[[Region], Region]) -> Any:
    """What is found in the changed region's result, and whether it breaks the plain lines."""
    (plan,) = grow(function, x).plans
    operators = reference(plan.lowered)
    results = evaluate(change(plan.lowered.region), plan.lowered.arguments((x,)))
    (out,) = plan.lowered.returned(results)
    (exact,) = run_in_float64(operators, (x,))
    broken = not all(result.passed for result in check(out, exact))
    return beyond_float32(operators, (x,), 0, out), broken


@pytest.mark.parametrize(
    ("function", "x"),
    [(_cancelling, SMALL), (_mean_of_norm, torch.randn(5, 8)), (_tails, TAILS)],
    ids=["cancelling", "mean_of_norm", "tails"],
)
def test_what_a_step_of_float32_explains_is_excused(grow: Any, function: Any, x: Tensor) -> None:
    found, broken = _beyond(grow, function, x, lambda region: region)
    assert broken
    assert found == []


def _each(change: Callable[[Statement], Statement]) -> Callable[[Region], Region]:
    return lambda region: replace(region, body=tuple(map(change, region.body)))


def _with_number(old: float, new: float) -> Callable[[Region], Region]:
    def change(item: Statement) -> Statement:
        close = [isinstance(arg, float) and abs(arg - old) < 1e-6 for arg in item.args]
        pairs = zip(item.args, close, strict=True)
        return replace(item, args=tuple(new if hit else arg for arg, hit in pairs))

    return _each(change)


def _without_casts(item: Statement) -> Statement:
    if item.op == "cast" and item.args[1] == "bfloat16":
        return replace(item, args=(item.args[0], "float32"))
    return item


def _sine_for_tanh(item: Statement) -> Statement:
    return replace(item, op="sin") if item.op == "tanh" else item


FAULTS = {
    "a constant of erf's argument": (_tails, TAILS, _with_number(0.5**0.5, 0.707)),
    "a term of the norm": (
        lambda x: layer_norm(x, x.shape[-1:]) * 3,
        1e-2 * torch.randn(5, 8),
        lambda region: replace(
            region,
            body=tuple(
                replace(item, args=(*item.args[:3], 1e-6)) if item.op == "layer_norm" else item
                for item in region.body
            ),
        ),
    ),
    "a lost cast": (_lost_bits, torch.randn(5, 17), _each(_without_casts)),
    "another function": (_cancelling, 100 * SMALL, _each(_sine_for_tanh)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(grow: Any, fault: str) -> None:
    function, x, change = FAULTS[fault]
    found, broken = _beyond(grow, function, x, change)
    assert broken
    assert found
