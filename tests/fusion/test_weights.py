"""Predicted times agree with counts by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from planner.cost.devices import Device, load_device
from planner.fusion.lower import LoweredRegion, lower
from planner.fusion.regions import find_regions
from planner.fusion.weights import (
    Rates,
    kernel_us,
    most_live,
    operators_us,
    passes_over_row,
    rates_of,
    saving_us,
)
from planner.passes.linear_bias import SPLIT

GPU = Rates(bytes_per_us=1000.0, launch_us=5.0, latency_us=1.0, on_gpu=True)
CPU = Rates(bytes_per_us=1000.0, launch_us=2.0, latency_us=0.1, on_gpu=False)
ROWS = 1000


@pytest.fixture
def whole(trace: Any) -> Any:
    """All operators of a function as one region."""

    def lowered(function: Any, *tensors: Tensor) -> LoweredRegion:
        nodes = [n for n in trace(function, *tensors).graph.nodes if n.op == "call_function"]
        return lower(nodes, "region", lambda node: node.name)

    return lowered


def _x(rows: int = ROWS, columns: int = 64) -> Tensor:
    return torch.empty(rows, columns)


def test_a_chain_reads_and_writes_once(whole: Any) -> None:
    """One tensor of 1,000 x 64 x 4 = 256,000 bytes; three operators move two each."""
    region = whole(lambda x: x.exp().tanh().sin(), _x())
    assert kernel_us(region, GPU) == 5 + 512
    assert operators_us(region.nodes, GPU) == 3 * (5 + 512)
    assert saving_us(region, GPU) == 2 * (5 + 512)


def test_each_input_and_output_counts_with_its_own_size(whole: Any) -> None:
    """h and the product are written; x, r, a vector of 64 and half as many bytes are read."""

    def form(x: Any, r: Any, v: Any, b: Any) -> Any:
        h = x + r
        return h, h * v + b

    region = whole(form, _x(), _x(), torch.empty(64), _x().bfloat16())
    assert kernel_us(region, GPU) == 5 + (4 * 256_000 + 256 + 128_000) / 1000


def test_little_work_takes_a_latency(whole: Any) -> None:
    region = whole(lambda x: x.exp() * 2, torch.empty(8))
    assert kernel_us(region, GPU) == 5 + 1
    assert kernel_us(region, CPU) == pytest.approx(2 + 0.1)


def test_eager_norms_count_twice(whole: Any) -> None:
    region = whole(lambda x: layer_norm(x, [64]), _x())
    assert operators_us(region.nodes, GPU) == 5 + 2 * 512
    assert kernel_us(region, GPU) == 5 + 512


def test_a_split_bias_is_read_by_the_gemm_on_a_gpu_and_a_pass_on_cpu(whole: Any) -> None:
    """The GEMM reads 256 bytes; taking it over counts a hundredth, for both ways are raced."""
    region = whole(lambda x, b: (x + b).tanh(), _x(), torch.empty(64))
    region.nodes[0].meta[SPLIT] = "linear"
    assert operators_us(region.nodes, GPU) == pytest.approx(0.256 + 0.01 + 5 + 512)
    assert operators_us(region.nodes, CPU) == pytest.approx(2 * (2 + 512) + 0.256)


@pytest.mark.parametrize(
    ("form", "passes"),
    [
        (lambda x: x.softmax(-1), 3),  # the maximum, the sum, the quotients
        (lambda x: (x * x).sum(-1, keepdim=True) + 1, 1),  # nothing as large as the row
        (lambda x: layer_norm(x, [x.shape[-1]]), 3),  # mean, variance, result
        (lambda x: x.amax(-1, keepdim=True) + x.sum(-1, keepdim=True) + x, 2),  # both at once
    ],
)
def test_a_long_row_is_read_once_a_pass(whole: Any, form: Any, passes: int) -> None:
    assert passes_over_row(whole(form, _x(4, 64)).region) == passes
    looped = whole(form, _x(ROWS, 40000))
    written = sum(node.meta["val"].numel() * 4 for node in looped.outputs)
    read = ROWS * 40000 * 4
    assert kernel_us(looped, GPU) == pytest.approx(5 + (passes * read + written) / 1000)
    assert kernel_us(looped, CPU) == pytest.approx(2 + (read + written) / 1000)


def test_few_long_rows_take_a_latency_for_each_block(whole: Any) -> None:
    """40,000 columns are ten blocks of 4,096, passed over three times; the rate would allow
    1 us.
    """
    fast = Rates(bytes_per_us=1e6, launch_us=5.0, latency_us=1.0, on_gpu=True)
    region = whole(lambda x: x.softmax(-1), _x(1, 40000))
    assert kernel_us(region, fast) == 5 + 3 * 10
    assert operators_us(region.nodes, fast) == 5 + 3 * 5


def test_what_moves_fewer_bytes_is_worth_a_trial_whatever_is_predicted(whole: Any) -> None:
    fast = Rates(bytes_per_us=1e6, launch_us=0.1, latency_us=1.0, on_gpu=True)
    region = whole(lambda x: (x * 2).softmax(-1), _x(1, 40000))
    assert operators_us(region.nodes, fast) < kernel_us(region, fast)
    assert 0 < saving_us(region, fast) < 0.1


def test_values_live_at_once_are_counted(whole: Any) -> None:
    assert most_live(whole(lambda x: x.exp().tanh() * 2, _x(4)).region) == 1
    assert most_live(whole(lambda x, r: (x + r).exp(), _x(4), _x(4)).region) == 2

    def held(x: Any, r: Any, s: Any) -> Any:
        return (x + r + s).softmax(-1) + x + r + s

    # All three wait for the softmax's result, which is a fourth.
    assert most_live(whole(held, _x(4), _x(4), _x(4)).region) == 4


def test_values_beyond_the_registers_are_written_and_read(whole: Any) -> None:
    """16,384 columns in 16 warps: 32 elements of each value a thread, 128 registers less 24."""

    def held(*tensors: Any) -> Any:
        total = tensors[0]
        for tensor in tensors[1:]:
            total = total + tensor
        result = total.softmax(-1)
        for tensor in tensors:
            result = result * tensor
        return result

    tensors = [_x(10, 16384) for _ in range(7)]
    region = whole(held, *tensors)
    live, moved = 8, 8 * 10 * 16384 * 4
    assert most_live(region.region) == live
    spilled = (live - (128 - 24) / 32) * 2 * 10 * 16384 * 4
    assert kernel_us(region, GPU) == pytest.approx(5 + (moved + spilled) / 1000)
    assert kernel_us(region, CPU) == pytest.approx(2 + moved / 1000)


def test_rates_are_the_device_s_and_assumed_where_it_has_none() -> None:
    known = rates_of(load_device("h200"), "cuda:0")
    assert (known.bytes_per_us, known.launch_us, known.on_gpu) == (4180e3, 8.7, True)
    unknown = rates_of(Device("unknown", "", (), {}), "cpu")
    assert unknown.bytes_per_us > 0
    assert unknown.launch_us > 0
    assert not unknown.on_gpu


def test_a_copy_into_another_layout_is_tried_by_itself_on_a_gpu(trace: Any) -> None:
    """Eager is slow at it; a copy of what lies as it should is nothing to gain by."""

    def form(empty: Any, x: Any) -> Any:
        turned = x.transpose(1, 2)
        return torch.cat((empty, turned), -2), turned.contiguous(), x.clone()

    graph = trace(form, torch.empty(0), torch.empty(4, 64, 8, 32)).graph
    plans, _ = find_regions(graph, [], lambda node: node.name, GPU)
    assert [node.name for plan in plans for node in plan.lowered.nodes] == ["cat", "contiguous"]
    assert find_regions(graph, [], lambda node: node.name)[0] == ()
