"""Activations as models write them: each spelling is found, a wrong constant is named, and what is
found computes what the graph does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import relu, silu
from transformers.activations import ACT2FN

K = math.sqrt(2 / math.pi)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (2 * torch.randn(shape, generator=torch.Generator().manual_seed(0))).to(dtype)


X, R, B = _drawn(4, 257), _drawn(4, 257), _drawn(257)


def _names(grown: Any) -> list[tuple[str, str]]:
    return [(m.rule, m.variant) for m in grown.matches]


def _same(grown: Any, rewritten: Any, form: Any, *tensors: torch.Tensor) -> None:
    loose = {"rtol": 3e-2, "atol": 3e-2} if tensors[0].dtype is not torch.float32 else {}
    torch.testing.assert_close(rewritten(grown)(*tensors), form(*tensors), **loose)


SPELLINGS: dict[str, list[Callable[[Any], Any]]] = {
    "gelu_tanh": [
        lambda x: 0.5 * x * (1.0 + torch.tanh(K * (x + 0.044715 * torch.pow(x, 3.0)))),
        lambda x: 0.5 * x * (1 + torch.tanh(K * (x + 0.044715 * x * x * x))),
        lambda x: x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))),
        lambda x: x * (0.5 * (torch.tanh((x**3 * 0.044715 + x) * 0.7978845608) + 1)),
        lambda x: 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x**2))),
    ],
    "gelu_erf": [
        lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
        lambda x: x * (0.5 * (torch.erf(x * 0.70710678) + 1)),
        lambda x: (x / 2) * (1 + torch.erf(x / 1.41421356)),
    ],
    "quick_gelu": [
        lambda x: x * torch.sigmoid(1.702 * x),
        lambda x: torch.sigmoid(x * 1.702) * x,
    ],
    "silu": [lambda x: x * torch.sigmoid(x), lambda x: torch.sigmoid(x) * x],
    "relu_squared": [
        lambda x: torch.square(relu(x)),
        lambda x: relu(x) ** 2,
        lambda x: relu(x).pow(2),
        lambda x: torch.clamp_min(x, 0) ** 2,
    ],
}
RULES = {"relu_squared": "relu_squared"}
CASES = [(name, form) for name, forms in SPELLINGS.items() for form in forms]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("name", "form"), CASES)
def test_a_written_activation_is_one_kernel(
    grow: Any, rewritten: Any, name: str, form: Callable[..., Any], dtype: torch.dtype
) -> None:
    x = X.to(dtype)
    grown = grow(form, x)
    assert _names(grown) == [(RULES.get(name, "written_activation"), name)]
    assert len(grown.plans) == 1
    _same(grown, rewritten, form, x)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("gelu_new", "gelu_tanh"),
        ("gelu_fast", "gelu_tanh"),
        ("gelu_accurate", "gelu_tanh"),
        ("gelu_python", "gelu_erf"),
        ("gelu_python_tanh", "gelu_tanh"),
        ("quick_gelu", "quick_gelu"),
        ("relu2", "relu_squared"),
    ],
)
def test_what_transformers_has_is_known(grow: Any, rewritten: Any, name: str, written: str) -> None:
    form = ACT2FN[name]
    grown = grow(form, X)
    assert _names(grown) == [(RULES.get(written, "written_activation"), written)]
    _same(grown, rewritten, form, X)


GELUS = [(name, form) for name, form in CASES if "gelu" in name]


@pytest.mark.parametrize(("name", "form"), GELUS)
def test_a_bias_and_a_residual_are_taken_in(
    grow: Any, rewritten: Any, name: str, form: Callable[..., Any]
) -> None:
    known = name.removesuffix("_erf")
    both = {
        f"bias_{known}": lambda x, b, _r: form(x + b),
        f"{known}_residual": lambda x, b, r: r + form(x * b),
        f"bias_{known}_residual": lambda x, b, r: form(b + x) + r,
    }
    for variant, function in both.items():
        grown = grow(function, X, B, R)
        assert _names(grown) == [("gelu_residual", variant)]
        assert len(grown.plans) == 1
        _same(grown, rewritten, function, X, B, R)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *(("swiglu", form) for form in SPELLINGS["silu"]),
        *(("geglu_tanh", form) for form in SPELLINGS["gelu_tanh"]),
        *(("geglu", form) for form in SPELLINGS["gelu_erf"]),
        *(("quick_geglu", form) for form in SPELLINGS["quick_gelu"]),
    ],
)
def test_a_written_activation_may_be_a_gate(
    grow: Any, rewritten: Any, name: str, form: Callable[..., Any]
) -> None:
    """As in T5's gated-gelu, whose GELU is gelu_new."""

    def gated(gate: Any, up: Any) -> Any:
        return form(gate) * up

    grown = grow(gated, X, R)
    assert _names(grown) == [("gated_activation", name)]
    _same(grown, rewritten, gated, X, R)


WRONG = [
    (
        lambda x: 0.5 * x * (1 + torch.tanh(K * (x + 0.0447 * x**3))),
        "gelu_tanh: the constant is 0.0447, the rule needs 0.044715",
    ),
    (
        lambda x: 0.5 * x * (1 + torch.tanh(0.7979 * (x + 0.044715 * x**3))),
        "gelu_tanh: the constant is 0.7979, the rule needs 0.79788456",
    ),
    (
        lambda x: x * (1 + torch.tanh(K * (x + 0.044715 * x**3))),
        "gelu_tanh: the constant is 1, the rule needs 0.5",
    ),
    (
        lambda x: 0.5 * x * (1 + torch.tanh(0.79 * x * (1 + 0.044715 * x * x))),
        "gelu_tanh: the constant is 0.79, the rule needs 0.79788456",
    ),
    (
        lambda x: 0.5 * x * (2 + torch.erf(x / math.sqrt(2.0))),
        "gelu_erf: other is 2, the rule needs 1.0",
    ),
    (
        lambda x: x * (1 + torch.erf(x / math.sqrt(2.0))),
        "gelu_erf: the constant is 1, the rule needs 0.5",
    ),
    (
        lambda x: 0.5 * x * (1 + torch.erf(x / 1.41)),
        "gelu_erf: the constant is 0.70921986, the rule needs 0.70710678",
    ),
    (
        lambda x: x * torch.sigmoid(1.7 * x),
        "quick_gelu: the constant is 1.7, the rule needs 1.702",
    ),
]


@pytest.mark.parametrize(("form", "reason"), WRONG)
def test_another_constant_is_named_and_the_chain_still_fused(
    grow: Any, rewritten: Any, form: Callable[..., Any], reason: str
) -> None:
    grown = grow(form, X)
    assert reason in [m.reason for m in grown.mismatches if m.rule == "written_activation"]
    assert [plan.rule for plan in grown.plans] == ["pointwise_chain"]
    _same(grown, rewritten, form, X)


@pytest.mark.parametrize(
    "form",
    [
        lambda x, r: 0.5 * x * (1 + torch.tanh(K * (x + 0.044715 * r**3))),
        lambda x, r: 0.5 * x * (1 + torch.erf(r / math.sqrt(2.0))),
        lambda x, r: x * torch.sigmoid(1.702 * r),
        lambda x, r: relu(x) * relu(r),
        lambda x, r: 0.5 * x * (1 - torch.tanh(K * (x + 0.044715 * x**3))) + r,
        lambda x, r: 0.5 * x * (1 + torch.tanh(K * (x - 0.044715 * x**3))) * r,
    ],
)
def test_two_values_or_another_sign_are_no_activation(grow: Any, form: Callable[..., Any]) -> None:
    assert _names(grow(form, X, R)) in ([], [("gated_activation", "reglu")])


def test_an_inner_value_read_elsewhere_becomes_an_output(grow: Any, rewritten: Any) -> None:
    def form(x: Any) -> Any:
        squares = x**2
        return 0.5 * x * (1 + torch.tanh(K * x * (1 + 0.044715 * squares))), squares

    grown = grow(form, X)
    assert _names(grown) == [("written_activation", "gelu_tanh")]
    assert len(grown.plans[0].lowered.outputs) == 2
    _same(grown, rewritten, form, X)


@pytest.mark.parametrize("form", [lambda x: relu(x) ** 3, lambda x: torch.clamp_min(x, -1) ** 2])
def test_what_is_no_square_of_relu(grow: Any, form: Callable[..., Any]) -> None:
    assert _names(grow(form, X)) == []


def test_half_a_square_is_a_square_and_a_half(grow: Any, rewritten: Any) -> None:
    """The number joins the kernel, and is no near miss of the rule."""
    grown = grow(lambda x: 0.5 * relu(x) ** 2, X)
    assert _names(grown) == [("relu_squared", "relu_squared")]
    assert grown.mismatches == ()
    _same(grown, rewritten, lambda x: 0.5 * relu(x) ** 2, X)


def test_a_silu_of_the_library_stays_what_it_is(grow: Any) -> None:
    assert _names(grow(lambda x, r: silu(x) + r, X, R)) == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "form",
    [
        lambda x: torch.tanh(x / 30.0) * 30.0,
        lambda x: 30.0 * torch.tanh(x / 30.0),
        lambda x: (torch.tanh(x.float() * (1 / 50)) * 50).to(x.dtype),
    ],
)
def test_a_softcap(grow: Any, rewritten: Any, form: Any, dtype: torch.dtype) -> None:
    x = 20 * X.to(dtype)
    grown = grow(form, x)
    assert _names(grown) == [("softcap", "softcap")]
    _same(grown, rewritten, form, x)


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (lambda x: torch.tanh(x / 30.0) * 50.0, "cap is both 30 and 50"),
        (lambda x: torch.tanh(x * 30.0) * 30.0, "cap is both 0.033333333 and 30"),
        (lambda x: torch.tanh(x / -3.0) * -3.0, "the cap -3.0 is not positive"),
    ],
)
def test_what_is_no_softcap(grow: Any, form: Any, reason: str) -> None:
    grown = grow(form, X)
    assert _names(grown) == []
    assert any(reason in m.reason for m in grown.mismatches)
    assert [plan.rule for plan in grown.plans] == ["pointwise_chain"]
