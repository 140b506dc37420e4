"""erf and tanh as rationals: within 4e-7 of float64 everywhere, odd, saturated, NaN and all."""

import math

import pytest
import torch

from fusion_kernels.builder import Builder
from fusion_kernels.evaluate import evaluate
from fusion_kernels.ir import Output
from fusion_kernels.rational import ERF, RATIONALS, TANH

BOTH = pytest.mark.parametrize("rational", [ERF, TANH], ids=lambda r: r.name)
TRUTH = {"erf": math.erf, "tanh": math.tanh}
LARGEST_ERROR = 4e-7


def region_of(name: str, size: int):
    made = Builder()
    made.input("x", "float32", (size,), (1,), 1)
    made.at("node", "node", "float32")
    return made.finish("r", (size,), [Output(made.apply(name, "x"), "float32", (size,), (1,))])


def run(name: str, x: torch.Tensor) -> torch.Tensor:
    (out,) = evaluate(region_of(name, x.numel()), [x])
    return out


def truth(name: str, x: torch.Tensor) -> torch.Tensor:
    """libm's own function in float64, one value at a time."""
    return torch.tensor([TRUTH[name](value) for value in x.tolist()], dtype=torch.float64)


def magnitudes() -> torch.Tensor:
    """Every binade down to 1e-30, and the range where the function bends, densely."""
    return torch.cat([torch.linspace(0, 12, 60_001)[1:], torch.logspace(-30, 1.1, 6_000)])


@BOTH
def test_it_is_within_its_error_everywhere_absolutely_and_relatively(rational):
    x = magnitudes()
    exact = truth(rational.name, x)
    error = (run(rational.name, x).double() - exact).abs()
    assert float(error.max()) < LARGEST_ERROR
    assert float((error / exact).max()) < LARGEST_ERROR


@BOTH
def test_the_kernel_s_text_computes_the_same(rational, kernel_run):
    x = magnitudes()[::64].contiguous()
    exact = truth(rational.name, x)
    (out,) = kernel_run(region_of(rational.name, x.numel()), (x,))
    assert float(((out.double() - exact).abs() / exact).max()) < LARGEST_ERROR


@BOTH
def test_it_is_exactly_odd(rational):
    x = magnitudes()
    assert torch.equal(run(rational.name, -x), -run(rational.name, x))


@BOTH
def test_it_passes_one_by_no_more_than_its_error(rational):
    assert float(run(rational.name, magnitudes()).max()) <= 1.0 + LARGEST_ERROR


@BOTH
def test_from_its_limit_on_it_is_exactly_one(rational):
    x = torch.tensor([rational.limit, 10.0, 1e3, 1e20, 3e38, math.inf])
    assert run(rational.name, x).tolist() == [1.0] * 6
    assert run(rational.name, -x).tolist() == [-1.0] * 6


@BOTH
def test_the_limit_costs_no_more_than_the_rounding(rational):
    """What is cut off at the limit is below half a step of float32 at 1."""
    assert 1.0 - TRUTH[rational.name](rational.limit) < 2**-24


@BOTH
def test_nan_stays_nan(rational):
    assert run(rational.name, torch.tensor([math.nan])).isnan().all()


@BOTH
def test_zero_is_zero_and_tiny_values_keep_their_slope(rational):
    slope = {"erf": 2 / math.sqrt(math.pi), "tanh": 1.0}[rational.name]
    x = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 1e-37])
    out = run(rational.name, x)
    assert out[:2].tolist() == [0.0, 0.0]
    assert out[:2].signbit().tolist() == [False, True]
    assert torch.allclose(out.double(), slope * x.double(), rtol=LARGEST_ERROR, atol=0.0)


@BOTH
def test_the_denominator_has_no_zero_inside_the_limit(rational):
    t = torch.linspace(0, rational.limit, 10_001, dtype=torch.float64).square()
    total = torch.zeros_like(t)
    for coefficient in reversed(rational.denominator):
        total = total * t + coefficient
    assert float(total.min()) >= 1.0


@BOTH
def test_the_denominator_is_normalized(rational):
    assert rational.denominator[0] == 1.0


def test_the_table_names_each_by_its_operation():
    assert {name: item.name for name, item in RATIONALS.items()} == {"erf": "erf", "tanh": "tanh"}
