"""Type promotion: for every pair of dtypes a region gives eager's dtype and values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from fusion_kernels.builder import NotLowered
from fusion_kernels.evaluate import evaluate
from fusion_kernels.tolerances import check

aten = torch.ops.aten

WHOLE = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32]
DTYPES = [*WHOLE, *FLOATS]
NUMBERS = [True, 3, -2, 2.5, float("inf")]

# The overloads for tensor with tensor, tensor with number, number with tensor; None for none.
OPERATORS: dict[str, tuple[Any, Any, Any]] = {
    "add": (aten.add.Tensor, aten.add.Tensor, None),
    "sub": (aten.sub.Tensor, aten.sub.Tensor, aten.rsub.Scalar),
    "mul": (aten.mul.Tensor, aten.mul.Tensor, None),
    "div": (aten.div.Tensor, aten.div.Tensor, None),
    "pow": (aten.pow.Tensor_Tensor, aten.pow.Tensor_Scalar, aten.pow.Scalar),
    "maximum": (aten.maximum.default, None, None),
    "minimum": (aten.minimum.default, None, None),
    "remainder": (aten.remainder.Tensor, aten.remainder.Scalar, None),
    "where": (aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf),
    **{
        name: (getattr(aten, name).Tensor, getattr(aten, name).Scalar, None)
        for name in ("lt", "le", "gt", "ge", "eq", "ne")
    },
}


def _values(dtype: torch.dtype, size: tuple[int, ...]) -> Tensor:
    """Random values, small enough that every dtype of the table holds the integers among them."""
    if dtype is torch.bool:
        return torch.rand(size) > 0.5
    if dtype.is_floating_point:
        return (4 * torch.randn(size)).to(dtype)
    return torch.randint(0 if dtype is torch.uint8 else -9, 10, size).to(dtype)


def _calls(
    name: str, one: torch.dtype, other: torch.dtype
) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Tensor with tensor, with a tensor without dimensions on either side, with numbers."""
    tensors, by_number, of_number = OPERATORS[name]
    chosen = (torch.rand(33) > 0.5,) if name == "where" else ()
    x, y = _values(one, (33,)), _values(other, (33,))
    yield tensors, (*chosen, x, y)
    yield tensors, (*chosen, x, _values(other, ()))
    yield tensors, (*chosen, _values(one, ()), y)
    if one is other:
        for number in NUMBERS:
            if by_number is not None:
                yield by_number, (*chosen, x, number)
            if of_number is not None:
                swapped = (x, number) if of_number is aten.rsub.Scalar else (number, x)
                yield of_number, (*chosen, *swapped)


def _eager(overload: Any, args: tuple[Any, ...]) -> Tensor | None:
    """None where eager refuses: a difference of booleans, an integer to a negative power."""
    try:
        result: Tensor = overload(*args)
    except (RuntimeError, NotImplementedError):
        return None
    return result


def _require_right(out: Tensor, expected: Tensor, exact: Tensor, said: Any) -> None:
    assert out.dtype is expected.dtype, said
    assert out.shape == expected.shape, said
    if not expected.dtype.is_floating_point:
        assert torch.equal(out, expected), said
    else:
        # Eager rounds a float32 without dimensions to the tensor's 16 bits, and a kernel does not.
        assert [r for r in check(out, exact, dtype=expected.dtype) if not r.passed] == [], said


# What no region holds, by the reason.
LEFT_OUT = re.compile("pow of booleans has no kernel expression|the number -2 is beyond uint8")


@pytest.mark.parametrize("one", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_every_pair_of_dtypes_promotes_as_in_eager(
    name: str, one: torch.dtype, traced_operator: Callable[..., Any]
) -> None:
    held = 0
    for other in DTYPES:
        for overload, args in _calls(name, one, other):
            expected = _eager(overload, args)
            if expected is None:
                continue
            said = (str(overload), [str(getattr(a, "dtype", a)) for a in args])
            try:
                traced = traced_operator(overload, *args)
            except NotLowered as refusal:
                if LEFT_OUT.fullmatch(str(refusal)) is None:
                    raise
                continue
            (out,) = evaluate(traced.region, traced.inputs)
            _require_right(out, expected, traced.exact()[0], said)
            held += 1
    assert held or (name, one) == ("sub", torch.bool)  # which eager refuses


SAMPLES = ("add", "div", "where", "maximum", "lt", "pow")


@pytest.mark.parametrize("name", SAMPLES)
def test_the_triton_text_promotes_alike(
    name: str, traced_operator: Callable[..., Any], kernel_run: Callable[..., Any]
) -> None:
    """A pair of each kind in the interpreter: widths, signs, 16-bit floats that meet in float32."""
    kinds = [
        (torch.uint8, torch.int8),
        (torch.int32, torch.int64),
        (torch.bool, torch.int16),
        (torch.int64, torch.float16),
        (torch.float16, torch.bfloat16),
    ]
    for pair in kinds:
        for overload, args in _calls(name, *pair):
            expected = _eager(overload, args)
            if expected is None:
                continue
            traced = traced_operator(overload, *args)
            (out,) = kernel_run(traced.region, traced.inputs)
            said = (str(overload), [str(getattr(a, "dtype", a)) for a in args])
            _require_right(out, expected, traced.exact()[0], said)


@pytest.mark.parametrize("wide", [torch.int8, torch.int64], ids=str)
@pytest.mark.parametrize("name", ["lt", "ge", "eq", "maximum", "minimum", "remainder", "where"])
def test_an_integer_without_dimensions_wraps_to_the_tensors_dtype(
    name: str, wide: torch.dtype, traced_operator: Callable[..., Any], kernel_run: Any
) -> None:
    """-1 beside a uint8 tensor is 255 in eager."""
    x = torch.tensor([0, 1, 254, 255], dtype=torch.uint8)
    chosen = (torch.tensor([True, False, True, False]),) if name == "where" else ()
    args = (*chosen, x, torch.tensor(-1, dtype=wide))
    overload = OPERATORS[name][0]
    traced = traced_operator(overload, *args)
    for out in (evaluate(traced.region, traced.inputs), kernel_run(traced.region, traced.inputs)):
        assert torch.equal(out[0], overload(*args))
