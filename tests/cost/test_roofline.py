"""The roofline: bounds and times from figures chosen by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.devices import Claim, Device, Source
from planner.cost.roofline import peak_tflops, place
from planner.graph.op_graph import OpNode, TensorMeta

SOURCE = Source("assumed", "chosen by hand", "2026-11-30")


def device(**figures: float) -> Device:
    claims = {name.replace("__", "."): (Claim(value, SOURCE),) for name, value in figures.items()}
    return Device("made", "made", ("made",), claims)


# 100 GB/s, 1 TFLOP/s in float32, 10 in bfloat16 on matrix units.
MADE = device(
    bandwidth_gbs=100.0, peak_tflops__float32=1.0, peak_tflops__bfloat16=10.0, peak_tflops__tf32=5.0
)


def meta(*shape: int, dtype: str = "float32") -> TensorMeta:
    strides = tuple(1 for _ in shape)
    return TensorMeta(shape, dtype, strides, "cpu")


def product(n: int, dtype: str = "float32") -> OpNode:
    x = meta(n, n, dtype=dtype)
    return OpNode("mm", "aten.mm.default", (x, x), {}, (x, x), (x,), "", "", None, ())


def pointwise(op: str, *shape: int, dtype: str = "float32") -> OpNode:
    x = meta(*shape, dtype=dtype)
    return OpNode("p", op, (x,), {}, (x,), (x,), "", "", None, ())


def test_compute_bound_product() -> None:
    point = place([product(1000)], MADE)
    assert point.attainable_us == pytest.approx(2e9 / 1e12 * 1e6)
    assert point.bound == "compute"
    assert point.intensity == pytest.approx(2e9 / 12e6)


def test_memory_bound_pointwise() -> None:
    point = place([pointwise("aten.relu.default", 1000, 1000)], MADE)
    assert point.attainable_us == pytest.approx(8e6 / 100e9 * 1e6)
    assert point.bound == "memory"


def test_calls_add_up() -> None:
    call = pointwise("aten.relu.default", 1000, 1000)
    point = place([call, call], MADE)
    assert point.cost.bytes == 16_000_000
    assert point.attainable_us == pytest.approx(160.0)


def test_work_shorter_than_a_launch_is_overhead() -> None:
    slow_launch = device(bandwidth_gbs=100.0, peak_tflops__float32=1.0, launch_overhead_us=5.0)
    call = pointwise("aten.relu.default", 10)
    assert place([call] * 4, slow_launch).bound == "overhead"
    assert place([pointwise("aten.relu.default", 1000, 1000)], slow_launch).bound == "memory"


def test_view_takes_no_time_and_has_no_intensity() -> None:
    point = place([pointwise("aten.view.default", 10)], MADE)
    assert (point.attainable_us, point.intensity, point.bound) == (0.0, None, None)


@pytest.mark.parametrize(
    "call", [pointwise("mine.op.default", 10), pointwise("aten.relu.default", 4, dtype="int64")]
)
def test_unknown_cost_or_peak_gives_no_time(call: OpNode) -> None:
    point = place([call, product(10)], MADE)
    assert (point.attainable_us, point.bound) == (None, None)


def test_device_without_figures_gives_no_time() -> None:
    point = place([product(10), pointwise("aten.view.default", 4)], device())
    assert point.attainable_us is None
    assert point.cost.flops == 2000


def test_peak_by_unit_and_dtype() -> None:
    assert peak_tflops(product(8, "bfloat16"), MADE) == 10.0
    assert peak_tflops(pointwise("aten.gelu.default", 8, dtype="bfloat16"), MADE) == 1.0
    assert peak_tflops(product(8, "float64"), MADE) is None


def test_tf32_only_where_torch_uses_it() -> None:
    assert peak_tflops(product(8), MADE) == 1.0
    assert peak_tflops(product(8), replace(MADE, tf32=frozenset({"matmul"}))) == 5.0
    assert peak_tflops(product(8), replace(MADE, tf32=frozenset({"convolution"}))) == 1.0
