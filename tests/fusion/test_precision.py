"""Which casts `--precision high` leaves out, and the reference that goes with it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from fusion_kernels.evaluate import evaluate
from planner.fusion.lower import LoweredRegion, input_hint, lower
from planner.fusion.precision import mark_lossy_casts, unrounded, without_casts
from planner.fusion.subgraph import extract, run_in_float64

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


class _Program:
    """What a pass needs of a program."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph


@pytest.fixture
def region(trace: Callable[..., fx.GraphModule]) -> Callable[..., LoweredRegion]:
    """All operators of a function as one region, lossy casts marked."""

    def lowered(function: Callable[..., Any], *tensors: Tensor) -> LoweredRegion:
        graph = trace(function, *tensors).graph
        program: Any = _Program(graph)
        mark_lossy_casts(program)
        return lower([n for n in graph.nodes if n.op == "call_function"], "r", input_hint({}))

    return lowered


def _x(dtype: torch.dtype = F32) -> Tensor:
    return (3 * torch.randn(4, 257)).to(dtype)


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_a_value_rounded_and_widened_again_is_not_rounded(region: Any, dtype: Any) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.exp((x * 2).to(dtype).float()) + 1

    lowered, x = region(function, _x()), _x()
    assert len(lowered.unrounded) == 1
    assert all(item.op != "cast" for item in lowered.region.body)
    torch.testing.assert_close(evaluate(lowered.region, (x,))[0], torch.exp(x * 2) + 1)


def test_a_value_that_goes_on_in_16_bits_is_not_rounded(region: Any) -> None:
    """RMSNorm as Llama writes it: the normed value is cast, then weighted in bfloat16."""

    def function(x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return weight * normed.to(BF16)

    lowered = region(function, _x(BF16), torch.ones(257, dtype=BF16))
    assert len(lowered.unrounded) == 1
    assert lowered.region.outputs[0].dtype == "bfloat16"


def test_a_cast_that_is_read_outside_stays(region: Any) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        rounded = (x * 2).to(BF16)
        return rounded, rounded.float() + 1

    lowered, x = region(function, _x()), _x()
    assert lowered.unrounded == ()
    for out, expected in zip(evaluate(lowered.region, (x,)), function(x), strict=True):
        assert torch.equal(out, expected)


@pytest.mark.parametrize(
    "last",
    [
        lambda r, x: torch.where(r > 0.3, x, -x),
        lambda r, x: (r.float() * 3).to(torch.int32) + x,
        lambda r, x: x * (r == r.round()),
        lambda r, x: torch.isnan(r).logical_or(x > 0),
        lambda r, x: torch.signbit(r * 2) | (x < 0),
    ],
    ids=["where", "integer", "equality", "isnan", "signbit"],
)
def test_a_cast_that_a_comparison_or_an_integer_is_made_of_stays(region: Any, last: Any) -> None:
    def function(x: Tensor) -> Tensor:
        return last((x * 1.7).to(BF16), x)

    lowered, x = region(function, _x()), _x()
    assert lowered.unrounded == ()
    assert torch.equal(evaluate(lowered.region, (x,))[0], function(x))


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, F32, torch.float8_e5m2])
def test_other_casts_are_not_marked(trace: Any, dtype: torch.dtype) -> None:
    def function(x: Tensor) -> Tensor:
        return (x * 2).to(dtype).float() + 1

    graph = trace(function, _x()).graph
    program: Any = _Program(graph)
    assert mark_lossy_casts(program) == ()
    assert unrounded([n for n in graph.nodes if n.op == "call_function"], ()) == ()


def test_a_cast_that_loses_nothing_is_not_marked(trace: Any) -> None:
    graph = trace(lambda x: x.to(BF16).float() + 1, torch.ones(3, dtype=torch.int8)).graph
    program: Any = _Program(graph)
    assert mark_lossy_casts(program) == ()


def test_between_the_two_16_bit_dtypes_either_way_loses_bits(trace: Any) -> None:
    graph = trace(lambda x: x.to(F16).to(BF16) + 1, _x(BF16)).graph
    program: Any = _Program(graph)
    assert mark_lossy_casts(program) == ("2 casts may be left out by a kernel",)


def test_unmarked_casts_stay(trace: Any) -> None:
    graph = trace(lambda x: (x * 2).to(BF16).float() + 1, _x()).graph
    assert unrounded([n for n in graph.nodes if n.op == "call_function"], ()) == ()


def test_the_reference_is_the_same_program_without_them(region: Any) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        low = (x * y).to(BF16)
        return torch.sigmoid(low) * y.to(BF16)

    x, y = _x(), _x()
    lowered = region(function, x, y)
    place = extract(lowered.nodes, lowered.inputs)
    names = {place.copies[node].name for node in lowered.unrounded}
    assert len(names) == 2
    exact, wide = without_casts(place.module, names), (x.double(), y.double())
    (truth,) = run_in_float64(exact, (x, y))
    torch.testing.assert_close(truth, torch.sigmoid(wide[0] * wide[1]) * wide[1])
    (rounded,) = run_in_float64(place.module, (x, y))
    assert (rounded - truth).abs().max() > 1e-3


def test_without_names_a_copy_computes_the_same(region: Any) -> None:
    lowered, x = region(lambda x: (x * 2).to(BF16).float() + 1, _x()), _x()
    module = extract(lowered.nodes, lowered.inputs).module
    assert torch.equal(without_casts(module, ())(x)[0], module(x)[0])
