"""The ways to fuse a place: what each would save, and the programs that are raced."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, linear

from fusion_kernels.library import define
from planner.cost.devices import Claim, Device, Source
from planner.fusion.candidate import after, alternatives, before
from planner.fusion.places import find_places
from planner.fusion.plan import write_kernel
from planner.fusion.spent import spent_input
from planner.passes.linear_bias import split_linear_bias
from planner.passes.runner import run_passes
from planner.pipeline import capture

KNOWN = Source("assumed", "this test", "2026-11-30")
DEVICE = Device(
    "d",
    "a device of 1 GB/s",
    (),
    {"bandwidth_gbs": (Claim(1.0, KNOWN),), "launch_overhead_us": (Claim(5.0, KNOWN),)},
)


class Block(nn.Module):
    """A linear, a norm's weights and one function of both and the inputs."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.fc, self.norm, self.scale = nn.Linear(8, 8), nn.LayerNorm(8), 0.5
        self.function = function

    def forward(self, *tensors: Tensor) -> Any:
        return self.function(self, *tensors)


X, R = torch.randn(4, 8), torch.randn(4, 8)


def _places(function: Any, *tensors: Tensor, device: str = "cpu") -> Any:
    torch.manual_seed(0)
    program = capture(Block(function).eval(), tensors).program
    run_passes(program, (("split", split_linear_bias),))
    places, _ = find_places(program, DEVICE, device)
    return places


def test_a_linears_bias_can_be_added_in_either_place() -> None:
    ((kernel, gemm),) = _places(lambda m, x, r: layer_norm(m.fc(x) + r, [8]), X, R)
    assert (kernel.way, gemm.way) == ("bias in the kernel", "bias in the GEMM")
    assert kernel.lowered.region.name == "bias_add_layer_norm"
    assert gemm.lowered.region.name == "add_layer_norm"
    assert kernel.nodes == ("linear_bias", *gemm.nodes)
    assert len(kernel.lowered.inputs) == len(gemm.lowered.inputs) + 1


def test_without_a_linear_there_is_one_way() -> None:
    ((only,),) = _places(lambda _m, x, r: layer_norm(x + r, [8]), X, R)
    assert only.way == "fused"


def test_one_operator_and_its_linears_bias_are_one_way_unless_a_rule_names_them() -> None:
    ((named, alone),) = _places(lambda m, x: gelu(m.fc(x)) * 2, X)
    assert (named.plan.rule, alone.way) == ("gelu_residual", "bias in the GEMM")
    ((chain,),) = _places(lambda m, x: m.fc(x).tanh(), X)
    assert chain.way == "bias in the kernel"


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: gelu(linear(x, m.fc.weight, m.fc.bias * m.scale)),
        lambda m, x: linear(x, m.fc.weight, m.fc.bias + m.norm.bias) ** 2.5,
    ],
)
def test_a_bias_computed_in_the_region_stays_there(fuse_all: Any, function: Any) -> None:
    """Left to the GEMM, the linear would wait for a kernel that reads the linear."""
    x = X.abs()
    ((only,),) = _places(function, x)
    assert only.way == "bias in the kernel"
    model = Block(function).eval()
    fused = fuse_all(model, (x,)).module
    torch.testing.assert_close(fused(x), model(x), equal_nan=True)
    assert fused.fallbacks == 0


@pytest.mark.parametrize("way", [0, 1])
def test_both_ways_compute_what_eager_does(fuse_all: Any, way: int) -> None:
    model = Block(lambda m, x, r: m.norm(gelu(m.fc(x)) + m.fc(r))).eval()
    fused = fuse_all(model, (X, R), way=way).module
    torch.testing.assert_close(fused(X, R), model(X, R))
    assert fused.fallbacks == 0


def test_traffic_counts_each_tensor_once_and_the_saving_follows() -> None:
    ((only,),) = _places(lambda _m, x, r: layer_norm(x + r, [8]), X, R)
    tensor = 4 * 8 * 4
    assert only.traffic.bytes_after == 3 * tensor
    assert only.traffic.bytes_before == 5 * tensor
    assert only.traffic.launches_before == 2
    assert only.predicted_us == pytest.approx(3 * tensor / 1e3)
    assert only.predicted_saving_us == pytest.approx(2 * tensor / 1e3 + 5.0)


def test_on_cuda_a_linears_own_bias_costs_nothing_before() -> None:
    ((on_cpu, _),) = _places(lambda m, x, r: layer_norm(m.fc(x) + r, [8]), X, R)
    ((on_cuda, _),) = _places(lambda m, x, r: layer_norm(m.fc(x) + r, [8]), X, R, device="cuda")
    assert on_cuda.traffic.launches_before == on_cpu.traffic.launches_before - 1
    assert on_cuda.traffic.bytes_before < on_cpu.traffic.bytes_before


def test_without_a_known_bandwidth_nothing_is_predicted() -> None:
    program = capture(Block(lambda _m, x, r: layer_norm(x + r, [8])).eval(), (X, R)).program
    ((only,),), _ = find_places(program, Device("d", "", (), {}), "cpu")
    assert (only.predicted_us, only.predicted_saving_us) == (None, None)


@pytest.mark.parametrize("with_linears", [False, True])
@pytest.mark.parametrize("way", [0, 1])
def test_what_is_raced_computes_the_same(tmp_path: Any, with_linears: bool, way: int) -> None:
    (ways,) = _places(lambda m, x, r: layer_norm(m.fc(x) + r, [8]), X, R)
    one = ways[way]
    operator = define(one.source, write_kernel(one.source, tmp_path))
    today = before(one, with_linears=with_linears)
    fused = after(one, operator, with_linears=with_linears)
    assert [n.name for n in today.inputs] == [n.name for n in fused.inputs]
    inputs = [torch.randn(n.meta["val"].shape) for n in today.inputs]
    expected = today.module(*[t.clone() for t in inputs])
    torch.testing.assert_close(fused.module(*inputs), expected)


def test_what_is_raced_holds_the_linear_only_where_asked(tmp_path: Any) -> None:
    ((kernel, _),) = _places(lambda m, x, r: layer_norm(m.fc(x) + r, [8]), X, R)
    operator = define(kernel.source, write_kernel(kernel.source, tmp_path))
    for with_linears, count in ((True, 1), (False, 0)):
        for place in (
            before(kernel, with_linears=with_linears),
            after(kernel, operator, with_linears=with_linears),
        ):
            targets = [str(n.target) for n in place.module.graph.nodes]
            assert targets.count("aten.linear.default") == count


def test_the_input_a_kernel_will_write_over_is_foreseen(fuse_all: Any) -> None:
    function = lambda m, r, x: r + gelu(m.fc(x))  # noqa: E731
    (ways,) = _places(function, R, X)
    assert [w.lowered.inputs[spent_input(w.lowered)].name for w in ways] == [
        "linear",
        "linear_bias",
    ]
    fused = fuse_all(Block(function).eval(), (R, X)).module
    assert "_into_" in fused.code


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x, r: layer_norm(m.fc(x) + r, [8]),  # a row is read several times
        lambda m, x, r: gelu(x + m.fc.bias) + r,  # the caller's own tensors
        lambda m, x, r: (lambda h: (gelu(h) + r, h.sum()))(m.fc(x)),  # read elsewhere
        lambda m, x, r: (lambda h: (h, gelu(h) + r))(m.fc(x)),  # returned
    ],
)
def test_what_others_may_still_read_is_not_written_over(fuse_all: Any, function: Any) -> None:
    model = Block(function).eval()
    x, r = X.clone(), R.clone()
    fused = fuse_all(model, (x, r)).module
    assert "_into_" not in fused.code
    assert all(spent_input(w.lowered) is None for ways in _places(function, X, R) for w in ways)
    torch.testing.assert_close(fused(x, r), model(x, r))
    assert torch.equal(x, X)
    assert torch.equal(r, R)


def test_equal_places_give_equal_kernels() -> None:
    first, second = _places(
        lambda m, x, r: layer_norm(layer_norm(x + r, [8]) @ m.fc.weight + r, [8]), X, R
    )
    assert first[0].source.file_name == second[0].source.file_name
    assert alternatives is not None
