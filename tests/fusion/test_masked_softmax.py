"""Scaled, capped and masked softmaxes as attention writes them: each form is found, rows that are
masked throughout come out as in eager, and what only looks like one is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import softmax

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LOWEST = torch.finfo(torch.float16).min


def _drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


SCORES = _drawn(2, 3, 5, 257)
HIDDEN = _drawn(2, 1, 5, 257, seed=1) > 0
HIDDEN[0, 0, 2] = True
BIAS = _drawn(1, 3, 5, 257, seed=2)


def _names(grown: Any) -> list[tuple[str, str]]:
    return [(m.rule, m.variant) for m in grown.matches]


def _as_eager(grown: Any, rewritten: Any, form: Any, *tensors: torch.Tensor) -> None:
    """What eager computes in float64, rounded once, and NaN in the same rows."""
    out, eager = rewritten(grown)(*tensors), form(*tensors)
    wanted = form(*(t.double() if t.is_floating_point() else t for t in tensors)).to(eager.dtype)
    step = 2 * torch.finfo(eager.dtype).eps if eager.dtype is not torch.float32 else 1e-5
    torch.testing.assert_close(out, wanted, equal_nan=True, rtol=step, atol=1e-6)
    assert torch.equal(out.isnan(), eager.isnan())


def _infinite(hidden: Any) -> torch.Tensor:
    return torch.zeros(hidden.shape).masked_fill(hidden, float("-inf"))


ADDED: list[tuple[str, Callable[..., Any]]] = [
    ("scaled_masked_softmax", lambda s, m: softmax(s * 0.125 + m, -1)),
    ("scaled_masked_softmax", lambda s, m: softmax(m + s / math.sqrt(64), 3)),
    (
        "scaled_masked_softmax",
        lambda s, m: softmax(s * 0.125 + m, dim=-1, dtype=torch.float32).to(s.dtype),
    ),
    ("scaled_masked_softmax", lambda s, m: softmax((s * 0.125 + m).float(), -1).type_as(s)),
    ("masked_softmax", lambda s, m: softmax(s + m, -1)),
    (
        "capped_masked_softmax",
        lambda s, m: softmax(torch.tanh(s * 0.125 / 50.0) * 50.0 + m, -1, dtype=torch.float32).to(
            s.dtype
        ),
    ),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("name", "form"), ADDED)
def test_a_mask_that_is_added(
    grow: Any, rewritten: Any, name: str, form: Callable[..., Any], dtype: torch.dtype
) -> None:
    """A position bias, and a mask of -inf that hides one row throughout."""
    for mask in (BIAS.to(dtype), _infinite(HIDDEN).to(dtype)):
        scores = SCORES.to(dtype)
        grown = grow(form, scores, mask)
        assert _names(grown) == [("masked_softmax", name)]
        assert len(grown.plans) == 1
        _as_eager(grown, rewritten, form, scores, mask)


FILLED: list[tuple[str, Callable[..., Any]]] = [
    ("filled_softmax", lambda s, m: softmax(s.masked_fill(m, float("-inf")), -1)),
    ("filled_softmax", lambda s, m: softmax(torch.where(m, s, LOWEST), -1)),
    ("scaled_filled_softmax", lambda s, m: softmax((s * 0.125).masked_fill(m, float("-inf")), -1)),
    ("scaled_filled_softmax", lambda s, m: softmax((0.125 * s).masked_fill(m, LOWEST), -1)),
    (
        "scaled_filled_softmax",
        lambda s, m: softmax(torch.where(m, s / 8, LOWEST), -1, dtype=torch.float32).to(s.dtype),
    ),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("name", "form"), FILLED)
def test_a_mask_that_is_filled_in(
    grow: Any, rewritten: Any, name: str, form: Callable[..., Any], dtype: torch.dtype
) -> None:
    scores = SCORES.to(dtype)
    grown = grow(form, scores, HIDDEN)
    assert _names(grown) == [("masked_softmax", name)]
    assert len(grown.plans) == 1
    _as_eager(grown, rewritten, form, scores, HIDDEN)


def test_a_fill_may_be_a_tensor(grow: Any, rewritten: Any) -> None:
    """As GPT-Neo has it: torch.where(causal, scores, torch.finfo(...).min as a tensor)."""

    def form(scores: Any, hidden: Any, lowest: Any) -> Any:
        return softmax(torch.where(hidden, scores * 0.125, lowest), -1)

    lowest = torch.tensor(LOWEST)
    grown = grow(form, SCORES, HIDDEN, lowest)
    assert _names(grown) == [("masked_softmax", "scaled_filled_softmax")]
    _as_eager(grown, rewritten, form, SCORES, HIDDEN, lowest)


def _filled(value: float, scores: Any, hidden: Any) -> Any:
    return softmax(scores.masked_fill(hidden, value), -1)


def test_a_row_hidden_throughout_is_nan_after_infinity_and_even_after_a_number(
    grow: Any, rewritten: Any
) -> None:
    for value in (float("-inf"), LOWEST):
        grown = grow(partial(_filled, value), SCORES, HIDDEN)
        row = rewritten(grown)(SCORES, HIDDEN)[0, 1, 2]
        if value == LOWEST:
            torch.testing.assert_close(row, torch.full((257,), 1 / 257))
        else:
            assert row.isnan().all()


def test_a_scale_alone(grow: Any, rewritten: Any) -> None:
    def form(scores: Any) -> Any:
        return softmax(scores / 8, -1)

    grown = grow(form, SCORES)
    assert _names(grown) == [("masked_softmax", "scaled_softmax")]
    assert grown.matches[0].bindings["scale"] == 0.125
    _as_eager(grown, rewritten, form, SCORES)


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (lambda s, _m: softmax(s * 0.125, 2), "dim is -2, the rule needs -1"),
        (lambda s, m: softmax(s * 0.125 + m, 1), "dim is -3, the rule needs -1"),
        (
            lambda s, m: softmax(torch.add(s * 0.125, m, alpha=2), -1),
            "alpha is 2, the rule needs 1",
        ),
        (lambda s, m: softmax(s[:, :1] + m, -1), "are broadcast to (2, 3, 5, 257)"),
    ],
)
def test_another_softmax_is_named(grow: Any, form: Callable[..., Any], reason: str) -> None:
    grown = grow(form, SCORES, BIAS)
    assert ("masked_softmax", "scaled_masked_softmax") not in _names(grown)
    assert any(reason in m.reason for m in grown.mismatches) or _names(grown)


@pytest.mark.parametrize(
    "form",
    [
        lambda s, m: torch.log_softmax(s * 0.125 + m, -1),
        lambda s, m: softmax(s - m, -1),
        lambda s, m: softmax(s * m, -1),
        lambda s, _m: softmax(s + 1.0, -1),
        lambda s, _m: softmax(s, -1) * 0.125,
    ],
)
def test_what_is_no_masked_softmax(grow: Any, form: Callable[..., Any]) -> None:
    """A logarithm, a difference, a product, a number, a scale that comes after."""
    grown = grow(form, SCORES, BIAS)
    assert _names(grown) == []
    assert [plan.rule for plan in grown.plans] == ["row_chain"]
