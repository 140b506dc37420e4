"""Device functions in the interpreter against float64: relative error, symmetry, special values."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fusion_kernels.builder import Builder
from fusion_kernels.functions.table import FUNCTIONS, needed
from fusion_kernels.ir import Output, Region

INF, NAN = float("inf"), float("nan")
SPECIAL = torch.tensor([0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, 1e-30, -1e-30, 1e-40, 3e38])


def logspaced(low: float, high: float, count: int = 4001) -> torch.Tensor:
    return torch.logspace(low, high, count)


def both_signs(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, -x])


# Where each function of one argument is measured, and its largest relative error there.
EVERYWHERE = both_signs(torch.cat([logspaced(-30, 37), torch.linspace(0.001, 12, 6001)]))
UP_TO_ONE = both_signs(torch.cat([logspaced(-30, 0), torch.linspace(0.001, 1, 6001)]))
POSITIVE = torch.cat([logspaced(-30, 37), torch.linspace(0.001, 20, 6001)])
RANGES: dict[str, tuple[torch.Tensor, float]] = {
    "round": (EVERYWHERE, 0.0),
    "expm1": (EVERYWHERE[EVERYWHERE.abs() < 80], 5e-7),
    "log1p": (torch.cat([POSITIVE, -UP_TO_ONE[(UP_TO_ONE > 0) & (UP_TO_ONE < 1)]]), 5e-7),
    "sinh": (EVERYWHERE[EVERYWHERE.abs() < 89], 2e-6),
    "cosh": (EVERYWHERE[EVERYWHERE.abs() < 89], 2e-6),
    "asin": (UP_TO_ONE, 5e-7),
    "acos": (UP_TO_ONE[UP_TO_ONE < 1], 5e-7),
    "atan": (EVERYWHERE, 5e-7),
    "asinh": (EVERYWHERE, 5e-7),
    "acosh": (POSITIVE[POSITIVE > 1], 5e-7),
    "atanh": (UP_TO_ONE[UP_TO_ONE.abs() < 1], 5e-7),
    "erfc": (torch.linspace(-6, 9, 12001), 2e-6),
    "erfcx": (torch.cat([logspaced(-30, 30), torch.linspace(-9, 30, 6001)]), 2e-5),
}
# Two arguments: a grid, and the largest relative error.
PAIRS: dict[str, tuple[torch.Tensor, torch.Tensor, float]] = {
    "power": (
        logspaced(-37, 38, 301)[:, None].expand(-1, 301).reshape(-1),
        torch.linspace(-40, 40, 301)[None].expand(301, -1).reshape(-1),
        5e-7,
    ),
    "atan2": (
        both_signs(logspaced(-20, 20, 151))[:, None].expand(-1, 302).reshape(-1),
        both_signs(logspaced(-20, 20, 151))[None].expand(302, -1).reshape(-1),
        5e-7,
    ),
    "fmod": (
        both_signs(logspaced(-38, 38, 101))[:, None].expand(-1, 202).reshape(-1),
        both_signs(logspaced(-37, 37, 101))[None].expand(202, -1).reshape(-1),
        0.0,
    ),
}


def region_of(name: str, *tensors: torch.Tensor) -> Region:
    made = Builder()
    kind = str(tensors[0].dtype).removeprefix("torch.")
    inputs = [made.input("x", kind, tensor.shape, (1,), 1) for tensor in tensors]
    made.at("node", "node", kind)
    out = Output(made.apply(name, *inputs), kind, tuple(tensors[0].shape), (1,))
    return made.finish("r", tuple(tensors[0].shape), [out])


def run(name: str, kernel_run: Any, *tensors: torch.Tensor) -> torch.Tensor:
    (out,) = kernel_run(region_of(name, *tensors), tensors)
    return out


def relative_error(out: torch.Tensor, exact: torch.Tensor) -> float:
    """Over normal finite results; below, float32 itself has fewer digits."""
    counted = (exact.abs() > 1.2e-38) & (exact.abs() < 3.4e38)
    return float(((out.double() - exact).abs() / exact.abs())[counted].max())


@pytest.mark.parametrize("name", RANGES)
def test_the_relative_error_is_small_everywhere(name: str, kernel_run: Any) -> None:
    x, limit = RANGES[name]
    out = run(name, kernel_run, x)
    assert relative_error(out, FUNCTIONS[name].evaluate(x.double())) <= limit


@pytest.mark.parametrize("name", PAIRS)
def test_the_relative_error_of_pairs_is_small(name: str, kernel_run: Any) -> None:
    x, y, limit = PAIRS[name]
    out = run(name, kernel_run, x, y)
    assert relative_error(out, FUNCTIONS[name].evaluate(x.double(), y.double())) <= limit


@pytest.mark.parametrize("name", RANGES)
def test_special_values_are_torch_s(name: str, kernel_run: Any) -> None:
    out, wanted = run(name, kernel_run, SPECIAL), FUNCTIONS[name].evaluate(SPECIAL)
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("name", PAIRS)
def test_special_pairs_are_torch_s(name: str, kernel_run: Any) -> None:
    values = torch.cat([SPECIAL, torch.tensor([0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 2.5, 1e-44])])
    x = values[:, None].expand(-1, len(values)).reshape(-1)
    y = values[None].expand(len(values), -1).reshape(-1)
    out = run(name, kernel_run, x, y)
    # In float32 torch's own vectors flush subnormal divisors.
    wanted = FUNCTIONS[name].evaluate(x.double(), y.double()).float()
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("name", ["sinh", "asin", "atan", "asinh", "atanh", "round"])
def test_odd_functions_are_exactly_odd(name: str, kernel_run: Any) -> None:
    x = RANGES[name][0]
    negative, positive = run(name, kernel_run, -x), run(name, kernel_run, x)
    assert torch.equal(negative, -positive)
    assert torch.equal(negative.signbit(), ~positive.signbit())


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("name", ["int_power", "gcd"])
def test_integer_functions_wrap_as_torch_s_do(
    name: str, dtype: torch.dtype, kernel_run: Any
) -> None:
    values = torch.arange(-12, 13) if dtype.is_signed else torch.arange(0, 25)
    x = values.to(dtype)[:, None].expand(-1, 25).reshape(-1)
    y = values.to(dtype)[None].expand(25, -1).reshape(-1)
    assert torch.equal(run(name, kernel_run, x, y), FUNCTIONS[name].evaluate(x, y))


def test_a_function_stands_after_those_it_calls() -> None:
    names = [item.name for item in needed(["zeta", "sinh"])]
    assert names == ["expm1", "sinh", "upper_bits", "power_of_two", "power", "zeta"]


def test_nothing_is_needed_for_operations_of_triton_s_own() -> None:
    assert needed(["add", "exp", "where"]) == ()
