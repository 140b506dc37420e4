"""A part of a graph alone, and a graph in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import rms_norm

from planner.fusion.subgraph import extract, run_in_float64

X, R = torch.randn(4, 8), torch.randn(4, 8)


def _part(trace: Any, function: Any, *names: str) -> Any:
    graph = trace(function, X, R).graph
    return [node for node in graph.nodes if node.name in names]


def test_outputs_are_what_is_read_outside(trace: Any) -> None:
    nodes = _part(trace, lambda x, r: ((x + r).tanh() * 2, (x + r).sin()), "add", "tanh", "mul")
    part = extract(nodes)
    assert [n.name for n in part.inputs] == ["x_1", "r_1"]
    assert [n.name for n in part.outputs] == ["mul"]
    torch.testing.assert_close(part.module(X, R)[0], (X + R).tanh() * 2)


def test_the_order_of_inputs_can_be_given(trace: Any) -> None:
    nodes = _part(trace, lambda x, r: (x - r) * 2, "sub", "mul")
    inputs = extract(nodes).inputs[::-1]
    torch.testing.assert_close(extract(nodes, inputs).module(R, X)[0], (X - R) * 2)


def test_nothing_is_rounded_in_float64(trace: Any) -> None:
    module = trace(lambda x, r: ((x + r).exp(),), X, R)
    (out,) = run_in_float64(module, [X, R])
    assert out.dtype is torch.float64
    assert torch.equal(out, (X.double() + R.double()).exp())


def test_the_programs_own_casts_are_applied(trace: Any) -> None:
    module = trace(lambda x, r: ((x + r).bfloat16() * 3,), X, R)
    (out,) = run_in_float64(module, [X, R])
    rounded = (X.double() + R.double()).bfloat16().double()
    assert torch.equal(out, rounded * 3)


def test_integers_stay_exact(trace: Any) -> None:
    n = torch.tensor([2**53 + 1, 3])
    (out,) = run_in_float64(trace(lambda n: (n * 1,), n), [n])
    assert torch.equal(out, n)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool])
def test_a_floating_function_of_integers_is_computed_in_float64(trace: Any, dtype: Any) -> None:
    n = torch.tensor([0, 1, 5, 77]).to(dtype)
    (out,) = run_in_float64(trace(lambda n: (torch.sin(n),), n), [n])
    assert torch.equal(out, torch.sin(n.double()))
    (ratio,) = run_in_float64(trace(lambda n: (n / 3,), n), [n])
    assert torch.equal(ratio, n.double() / 3)


def test_what_chooses_stays_a_condition(trace: Any) -> None:
    chosen = torch.tensor([True, False])
    (out,) = run_in_float64(trace(lambda c: (torch.where(c, 0.5, 2.0),), chosen), [chosen])
    assert torch.equal(out, torch.tensor([0.5, 2.0]).double())


@pytest.mark.parametrize("dtype", [torch.int8, torch.float32])
def test_the_trigamma_function_is_infinite_at_its_poles(trace: Any, dtype: torch.dtype) -> None:
    x = torch.tensor([-9, -1, 0, 1]).to(dtype)
    (out,) = run_in_float64(trace(lambda x: (torch.polygamma(1, x),), x), [x])
    assert torch.isinf(out[:3]).all()
    torch.testing.assert_close(out[3].item(), torch.pi**2 / 6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_neighbour_is_one_of_the_programs_dtype(trace: Any, dtype: torch.dtype) -> None:
    x, y = X.to(dtype), R.to(dtype)
    (out,) = run_in_float64(trace(lambda x, y: (torch.nextafter(x, y),), x, y), [x, y])
    assert torch.equal(out, torch.nextafter(x, y).double())


def test_values_that_are_no_tensors_pass_through(trace: Any) -> None:
    graph = trace(lambda x: (x * 2,), X).graph
    first = next(iter(graph.nodes))
    with graph.inserting_after(first):
        graph.placeholder("mask")
    (out,) = run_in_float64(torch.fx.GraphModule(torch.nn.Module(), graph), [X, None])
    assert torch.equal(out, X.double() * 2)


def _random(x: torch.Tensor) -> Any:
    dropped = torch.dropout(x, 0.5, True)
    return dropped, torch.bernoulli(x.sigmoid()), torch.rand_like(x), torch.rand(4, 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_random_operators_draw_the_numbers_of_eager(trace: Any, dtype: torch.dtype) -> None:
    x = X.to(dtype)
    module = trace(_random, x)
    torch.manual_seed(0)
    expected = _random(x)
    torch.manual_seed(0)
    outs = run_in_float64(module, [x])
    assert all(out.dtype is torch.float64 for out in outs)
    assert all(torch.equal(a, b.double()) for a, b in zip(outs, expected, strict=True))


def test_dropout_that_drops_nothing_rounds_nothing(trace: Any) -> None:
    x = X.bfloat16()
    (out,) = run_in_float64(trace(lambda x: (torch.dropout(x / 3, 0.5, False),), x), [x])
    assert torch.equal(out, x.double() / 3)


def test_complex_values_go_on_in_complex128(trace: Any) -> None:
    z = torch.complex(X, R)
    outs = run_in_float64(trace(lambda z: (z / 3, (z / 3).abs()), z), [z])
    assert torch.equal(outs[0], z.to(torch.complex128) / 3)
    assert torch.equal(outs[1], (z.to(torch.complex128) / 3).abs())


def test_a_cast_to_another_tensor_s_dtype_is_applied(trace: Any) -> None:
    x, like = torch.randn(4, 8), torch.randn(4, 8).bfloat16()
    module = trace(lambda x, like: (x.type_as(like) * 3,), x, like)
    (out,) = run_in_float64(module, [x, like])
    assert torch.equal(out, x.bfloat16().double() * 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_arguments_left_out_mean_what_eager_makes_of_them(trace: Any, dtype: torch.dtype) -> None:
    """RMSNorm's eps decides for values as small as these; an infinity becomes the largest value."""
    x = (torch.randn(4, 8) * 1e-3).to(dtype)
    (out,) = run_in_float64(trace(lambda x: (rms_norm(x, (8,)),), x), [x])
    torch.testing.assert_close(out.to(dtype), rms_norm(x, (8,)))
    x[0, 0], x[1, 1] = torch.inf, -torch.inf
    (out,) = run_in_float64(trace(lambda x: (torch.nan_to_num(x),), x), [x])
    assert torch.equal(out.to(dtype), torch.nan_to_num(x))


def test_a_view_of_what_lies_otherwise_in_float64_is_a_copy(trace: Any) -> None:
    """Attention in bfloat16 may return what can be viewed, and in float64 what cannot."""
    module = trace(lambda x: (x.view(32),), X)
    (out,) = run_in_float64(module, [X.t().contiguous().t()])
    assert torch.equal(out, X.double().reshape(32))


def test_a_dtype_to_compute_in_is_float64(trace: Any) -> None:
    def both(x: torch.Tensor) -> Any:
        total = torch.linalg.vector_norm(x, 2, -1, True, dtype=torch.float32)
        return x.softmax(-1, torch.float32), x.sum(-1, keepdim=True, dtype=torch.float32), total

    outs = run_in_float64(trace(both, X.bfloat16()), [X.bfloat16()])
    exact = X.bfloat16().double()
    assert torch.equal(outs[0], exact.softmax(-1))
    assert torch.equal(outs[1], exact.sum(-1, keepdim=True))
    assert torch.equal(outs[2], torch.linalg.vector_norm(exact, 2, -1, True))
    (counted,) = run_in_float64(trace(lambda x: (x.sum(-1, dtype=torch.int64),), X), [X.bool()])
    assert counted.dtype is torch.int64
