"""The roofline: the least time a device can need for a call's arithmetic and traffic.

Source: S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model
for multicore architectures", Communications of the ACM 52(4), 2009: attainable performance =
min(peak arithmetic, bandwidth x arithmetic intensity).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from planner.cost.devices import Device
from planner.cost.families import CONVOLUTION, MATRIX, packet
from planner.cost.formulas import NO_COST, OpCost, cost_of
from planner.graph.op_graph import OpNode
from planner.report.model import Bound


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """Where calls stand on a device's roofline.

    `cost`: FLOPs and bytes of all of them. `intensity`: FLOP a byte. `attainable_us`: the sum over
    the calls of max(flops / peak, bytes / bandwidth), launch overhead not included. `bound`: what
    sets it, or `overhead` where a launch takes longer than the work. None where a figure of the
    cost or the device is not known.
    """

    cost: OpCost
    intensity: float | None
    attainable_us: float | None
    bound: Bound | None


def place(nodes: Iterable[OpNode], device: Device) -> RooflinePoint:
    """One point for one or several calls."""
    cost, compute_us, memory_us, attainable_us = NO_COST, 0.0, 0.0, 0.0
    calls, known = 0, True
    for node in nodes:
        calls += 1
        call = cost_of(node)
        cost += call
        times = _times_us(node, call, device)
        if times is None:
            known = False
            continue
        compute_us += times[0]
        memory_us += times[1]
        attainable_us += max(times)
    known = known and calls > 0
    return RooflinePoint(
        cost,
        _intensity(cost),
        attainable_us if known else None,
        _bound(compute_us, memory_us, attainable_us, calls, device) if known else None,
    )


def peak_tflops(node: OpNode, device: Device) -> float | None:
    """The arithmetic peak that a node can reach, TFLOP/s, or None when not known.

    Matrix operators run at the peak of their dtype (float32 at TF32's where torch allows it).
    Everything else computes in float32 on the vector units, in float64 for float64 data; of
    integer arithmetic nothing is claimed.
    """
    dtype = next((meta.dtype for meta in node.inputs if "float" in meta.dtype), None)
    if dtype is None:
        return None
    name = packet(node.op)
    if name not in MATRIX:
        return device.peak_tflops.get("float64" if dtype == "float64" else "float32")
    use = "convolution" if name in CONVOLUTION else "matmul"
    if dtype == "float32" and use in device.tf32:
        dtype = "tf32"
    return device.peak_tflops.get(dtype)


def _times_us(node: OpNode, cost: OpCost, device: Device) -> tuple[float, float] | None:
    """Compute and memory time of one call. Without arithmetic no peak is needed."""
    if cost.flops is None or cost.bytes is None:
        return None
    peak = peak_tflops(node, device) if cost.flops else 1.0
    bandwidth = device.bandwidth_gbs
    if peak is None or bandwidth is None:
        return None
    return cost.flops / peak / 1e6, cost.bytes / bandwidth / 1e3


def _intensity(cost: OpCost) -> float | None:
    if cost.flops is None or not cost.bytes:
        return None
    return cost.flops / cost.bytes


def _bound(
    compute_us: float, memory_us: float, attainable_us: float, calls: int, device: Device
) -> Bound | None:
    overhead_us = device.launch_overhead_us
    if overhead_us is not None and attainable_us < calls * overhead_us:
        return "overhead"
    if attainable_us == 0.0:
        return None
    return "compute" if compute_us > memory_us else "memory"
