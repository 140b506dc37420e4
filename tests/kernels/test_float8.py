"""Conversions to and from the 8-bit floating dtypes, bit for bit as torch makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fusion_kernels.builder import NotLowered
from fusion_kernels.cpu import compile_region
from fusion_kernels.functions.float8 import DECODERS, ENCODERS
from fusion_kernels.functions.table import FUNCTIONS
from fusion_kernels.ir import Input, Output, Region, Statement

DTYPES = [torch.float8_e4m3fn, torch.float8_e5m2]
CODES = torch.arange(256, dtype=torch.uint8)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@pytest.fixture
def call(kernel_run: Callable[..., Any]) -> Callable[[str, Tensor], Tensor]:
    """A device function of one argument in the interpreter."""

    def run(name: str, x: Tensor) -> Tensor:
        source, target = ("uint8", "float32") if name.startswith("from") else ("float32", "uint8")
        size = x.numel()
        statement = Statement("y", name, ("x",), target, "node")
        region = Region(
            "region",
            (size,),
            0,
            (Input("x", source, (size,), (1,), 1),),
            (statement,),
            (Output("y", target, (size,), (1,)),),
        )
        (out,) = kernel_run(region, (x,))
        return out

    return run


def _values(dtype: torch.dtype) -> Tensor:
    """Every value of the dtype, the midpoints of neighbours, and what lies a float32 step beside
    either, both signs; past the largest; zeros, subnormals of float32, infinities, random values.
    """
    finite = CODES.view(dtype).float()
    finite = finite[finite.isfinite()].unique()
    middle = (finite[1:] + finite[:-1]) / 2
    largest = torch.finfo(dtype).max
    past = largest * torch.tensor([1.01, 1.03, 29 / 28, 1.06, 1.0714286, 1.1, 1.142857, 1.2, 2.0])
    odd = torch.tensor([0.0, -0.0, 1e-40, 1e-30, 3e38, torch.inf, torch.nan])
    spread = torch.randn(4001) * torch.logspace(-12, 6, 4001)
    exact = torch.cat([finite, middle, past, -past, odd, -odd, spread])
    up, down = (torch.nextafter(exact, torch.tensor(to)) for to in (torch.inf, -torch.inf))
    return torch.cat([exact, up, down])


def _same(codes: Tensor, other: Tensor, dtype: torch.dtype) -> None:
    """Equal bits; of a NaN the sign may differ."""
    one, two = codes.view(dtype).float(), other.view(dtype).float()
    assert torch.equal(one.isnan(), two.isnan())
    assert torch.equal(codes[~one.isnan()], other[~one.isnan()])


@pytest.mark.parametrize("dtype", DTYPES, ids=_name)
def test_every_code_is_the_value_that_torch_makes_of_it(call: Any, dtype: torch.dtype) -> None:
    expected = CODES.view(dtype).float()
    name = DECODERS[_name(dtype)]
    for out in (call(name, CODES), FUNCTIONS[name].evaluate(CODES)):
        assert torch.equal(out.isnan(), expected.isnan())
        known = ~expected.isnan()
        assert torch.equal(out[known].view(torch.int32), expected[known].view(torch.int32))


@pytest.mark.parametrize("dtype", DTYPES, ids=_name)
def test_values_and_midpoints_become_the_code_that_torch_gives(
    call: Any, dtype: torch.dtype
) -> None:
    x, name = _values(dtype), ENCODERS[_name(dtype)]
    expected = x.to(dtype).view(torch.uint8)
    _same(call(name, x), expected, dtype)
    _same(FUNCTIONS[name].evaluate(x), expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=_name)
def test_every_code_comes_back_as_itself(call: Any, dtype: torch.dtype) -> None:
    names = [name for name in FUNCTIONS if name.startswith(f"to_{_name(dtype)}")]
    values = call(DECODERS[_name(dtype)], CODES)
    for name in names:
        _same(call(name, values), CODES, dtype)


@pytest.mark.parametrize(
    ("name", "beyond"), [("to_float8_e4m3fn", torch.nan), ("to_float8_e4m3fn_saturated", 448.0)]
)
def test_past_the_largest_it_saturates_or_is_nan(call: Any, name: str, beyond: float) -> None:
    """Torch did one in earlier versions and does the other now; both are there for artifacts."""
    x = torch.tensor([448.0, 464.0, 464.0001, 480.0, 1e30, torch.inf, torch.nan])
    expected = torch.tensor([448.0, 448.0, beyond, beyond, beyond, beyond, torch.nan])
    for sign in (1, -1):
        for codes in (call(name, sign * x), FUNCTIONS[name].evaluate(sign * x)):
            torch.testing.assert_close(
                codes.view(torch.float8_e4m3fn).float(),
                sign * expected,
                rtol=0,
                atol=0,
                equal_nan=True,
            )


# --- regions ---------------------------------------------------------------------------------


def _codes(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Random finite values of all sizes."""
    drawn = torch.randint(0, 256, shape, dtype=torch.uint8).view(dtype)
    return torch.where(drawn.float().isfinite(), drawn, torch.ones_like(drawn, dtype=dtype))


def _dequantized(codes: Tensor, scale: Tensor) -> Tensor:
    return codes.to(torch.bfloat16) * scale


def _quantized(dtype: torch.dtype) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    largest = torch.finfo(dtype).max

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-6) / largest
        return scale, (x / scale).clamp(-largest, largest).to(dtype)

    return function


SHAPES = [(3, 257), (1, 257), (5, 1), (0, 4), (257,), (2, 3, 40)]


@pytest.mark.parametrize("dtype", DTYPES, ids=_name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_dequantising_is_exact(
    traced: Any, kernel_run: Any, assert_right: Any, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    codes, scale = _codes(shape, dtype), torch.rand(shape[-1]).bfloat16()
    made = traced(_dequantized, codes, scale)
    assert_right(made)
    (out,) = kernel_run(made.region, made.inputs)
    assert torch.equal(out, _dequantized(codes, scale))


@pytest.mark.parametrize("dtype", DTYPES, ids=_name)
@pytest.mark.parametrize("shape", SHAPES[:-2], ids=str)
def test_quantising_a_row_gives_eagers_codes(
    traced: Any, kernel_run: Any, assert_right: Any, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    function, x = _quantized(dtype), torch.randn(shape) * 100
    made = traced(function, x)
    assert_right(made)
    scale, codes = kernel_run(made.region, made.inputs)
    expected_scale, expected = function(x)
    assert codes.dtype is dtype
    torch.testing.assert_close(scale, expected_scale, rtol=2e-7, atol=0)
    apart = codes.view(torch.uint8).int() - expected.view(torch.uint8).int()
    assert apart.abs().max() <= 1 if apart.numel() else True  # the scale may be a step beside


@pytest.mark.parametrize("dtype", DTYPES, ids=_name)
def test_the_users_cast_through_8_bits_rounds(
    traced: Any, kernel_run: Any, assert_right: Any, dtype: torch.dtype
) -> None:
    def function(x: Tensor) -> Tensor:
        return (x * 3).to(dtype).to(torch.float32) - x

    x = torch.randn(4, 257)
    made = traced(function, x)
    assert_right(made)
    assert torch.equal(kernel_run(made.region, (x,))[0], function(x))


def test_values_that_are_only_moved_keep_their_codes(traced: Any, kernel_run: Any) -> None:
    """NaN, both zeros and infinities too, through a choice and a cat."""
    orders = (CODES, CODES.flip(0), CODES.roll(7))
    drawn = [codes.reshape(16, 16).view(torch.float8_e5m2) for codes in orders]

    def function(x: Tensor, y: Tensor, z: Tensor, chosen: Tensor) -> Tensor:
        return torch.cat([torch.where(chosen, x, z), y], -1)

    tensors = (*drawn, torch.rand(16, 16) > 0.5)
    made = traced(function, *tensors)
    (out,) = kernel_run(made.region, made.inputs)
    assert out.shape == (16, 32)
    _same(
        out.view(torch.uint8).reshape(-1),
        function(*tensors).view(torch.uint8).reshape(-1),
        torch.float8_e5m2,
    )


def test_strided_and_transposed_codes(traced: Any, assert_right: Any) -> None:
    scale = torch.rand(6).bfloat16()
    wide = _codes((8, 12), torch.float8_e4m3fn)
    for codes in (wide[:, ::2], _codes((6, 8), torch.float8_e4m3fn).t(), wide[:1, :6].expand(8, 6)):
        assert_right(traced(_dequantized, codes, scale))


def test_a_scalar_in_8_bits(traced: Any, assert_right: Any) -> None:
    scale = torch.tensor(3.0).to(torch.float8_e4m3fn)
    assert_right(traced(lambda x, s: x * s.float() + 1, torch.randn(3, 5), scale))


def test_the_region_tells_codes_from_values(traced: Any) -> None:
    codes = _codes((2, 4), torch.float8_e4m3fn)
    region = traced(_dequantized, codes, torch.ones(4, dtype=torch.bfloat16)).region
    assert str(region).startswith("region region(x: f8e4m3[2, 4], y: bf16[1, 4]) -> bf16[2, 4]")
    assert "from_float8_e4m3fn(x)" in str(region)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz], ids=_name)
def test_other_8_bit_dtypes_are_refused(traced: Any, dtype: torch.dtype) -> None:
    with pytest.raises(NotLowered, match=f"{_name(dtype)} tensors have no kernel expression"):
        traced(lambda x: x.float() * 2, torch.ones(4).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=_name)
def test_compiled_for_cpu_the_conversions_are_the_same(traced: Any, dtype: torch.dtype) -> None:
    """A choice of what was cast, beside the cast that must not be dropped."""

    def function(x: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        rounded = (x * 3).to(dtype)
        return rounded, rounded.to(torch.float32) + codes.to(torch.float32)

    x, codes = _values(dtype)[None], _codes((1, _values(dtype).numel()), dtype)
    x = torch.where(x.isfinite(), x, 1.0)
    made = traced(function, x, codes)
    compiled = compile_region(made.region)
    assert compiled.compiled, compiled.reason
    results = compiled.run(*made.inputs)
    for out, expected in zip(results, function(x, codes), strict=True):
        torch.testing.assert_close(out.float(), expected.float(), rtol=0, atol=0, equal_nan=True)
