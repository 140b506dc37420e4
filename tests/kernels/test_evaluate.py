"""A region run by torch: rounding once, row operations, memory order, outputs of their own."""

import pytest
import torch
from torch.nn.functional import gelu, layer_norm

from fusion_kernels.builder import Builder
from fusion_kernels.evaluate import evaluate
from fusion_kernels.ir import Output, Region, region_text


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def reduction(op: str, dtype: str = "float32", width: int = 5) -> Region:
    """`op` over rows of five, of an input `[4, width]`, minus y `[4, 5]` so that rows have five."""
    made = Builder(1, 5)
    x = made.input("x", dtype, (4, width), (width, 1) if width > 1 else (1, 0), 2)
    y = made.input("y", "float32", (4, 5), (5, 1), 2)
    made.at("node", "node", "float32")
    value = made.apply("sub", made.apply(op, x), y)
    return made.finish("reduction", (4, 5), [Output(value, "float32", (4, 5), (5, 1))])


@pytest.mark.parametrize("op", ["row_sum", "row_mean"])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_row_reductions_are_right_by_torch_and_as_text(op, dtype, kernel_run):
    x = (randn(4, 5) * 4).to(getattr(torch, dtype))
    y = randn(4, 5, seed=1)
    exact = (x.double().sum(1, True) if op == "row_sum" else x.double().mean(1, True)) - y
    for run in (evaluate, kernel_run):
        (out,) = run(reduction(op, dtype), (x, y))
        torch.testing.assert_close(out.double(), exact, rtol=1e-6, atol=1e-6)


def test_what_broadcasts_along_a_row_counts_for_every_element(kernel_run):
    x, y = randn(4, 1), randn(4, 5, seed=1)
    for run in (evaluate, kernel_run):
        (out,) = run(reduction("row_sum", width=1), (x, y))
        torch.testing.assert_close(out, 5 * x - y)


def test_the_body_runs_in_float32_and_rounds_once(traced):
    """In bfloat16 the sum would lose the small addend."""
    tensors = [torch.full((4,), value, dtype=torch.bfloat16) for value in (256.0, 0.5)]
    example = traced(lambda x, y: (x + y) - x, *tensors)
    (out,) = evaluate(example.region, example.inputs)
    assert out.dtype is torch.bfloat16
    assert out.tolist() == [0.5] * 4


def test_layer_norm_keeps_what_a_large_mean_hides(traced):
    x = randn(3, 257) + 1000.0
    example = traced(lambda x: layer_norm(x, (257,)), x)
    (out,) = evaluate(example.region, (x,))
    exact = layer_norm(x.double(), (257,))
    assert float((out - exact).abs().max()) < 1e-5


@pytest.mark.parametrize("leading", [0, 1, 9])
def test_sizes_may_differ_from_the_capture_s(leading, traced):
    example = traced(lambda x, y: gelu(x + y), randn(4, 17), randn(17))
    x, y = randn(leading, 17), randn(17)
    (out,) = evaluate(example.region, (x, y))
    torch.testing.assert_close(out, gelu(x + y), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format], ids=str)
def test_the_result_lies_in_the_captured_memory_order(order, traced):
    x = randn(2, 3, 4, 5).to(memory_format=order)
    example = traced(lambda x: gelu(x) * 2.0, x)
    for given in (x, x.contiguous(), randn(6, 3, 4, 5)):
        assert evaluate(example.region, (given,))[0].is_contiguous(memory_format=order)


def test_every_output_is_a_tensor_of_its_own(traced):
    x = randn(4, 5)
    example = traced(lambda x: (x.clone(), x * 1.0, x * 2.0), x)
    outs = evaluate(example.region, (x,))
    assert len({t.data_ptr() for t in (x, *outs)}) == 4


def test_a_region_prints_as_text(traced):
    example = traced(lambda x, y: gelu(x + y, approximate="tanh"), randn(4, 17), randn(17))
    lines = region_text(example.region).splitlines()
    assert lines[0] == "region region(x: f32[4, 17], y: f32[1, 17]) -> f32[4, 17]"
    assert lines[1].split() == ["add", "=", "x", "+", "y", "#", "add"]
    assert lines[-1] == "  store gelu"


def test_a_row_region_says_so_in_its_text():
    assert region_text(reduction("row_sum")).splitlines()[0].endswith("rows over the last 1")
