"""No region makes a library's faster kernel unreachable: rewrites to such kernels come first, and
where a kernel competes with the library's form, both are raced.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm

from fusion_kernels.lowering import LOWERINGS
from planner.cost.devices import Device, load_device
from planner.cost.families import MATRIX, packet
from planner.fusion.places import find_places
from planner.graph.view import op_name
from planner.passes.linear_bias import SPLIT, split_linear_bias
from planner.passes.runner import run_passes
from planner.pipeline import capture
from planner.rewriting import rewritten
from planner.timing import Comparison

WINS, LOSES = Comparison(1.2, 1.1, 1.3), Comparison(0.8, 0.7, 0.9)
UNKNOWN = Device("unknown", "", (), {})


class Written(nn.Module):
    """Attention in two products and a softmax."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ((q @ k.mT) * 0.5).softmax(-1) @ v


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)).relu() * 2


class Layer(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.fc, self.function = nn.Linear(16, 16), function

    def forward(self, x: Tensor, r: Tensor) -> Any:
        return self.function(self.fc(x), r)


def _regions(model: nn.Module, args: tuple[Any, ...], race: Comparison) -> tuple[Any, list[str]]:
    """The operators left to eager and those in regions, once every rewrite had that race."""
    program, _ = rewritten(capture(model.eval(), args).program, lambda *_: race)
    run_passes(program, (("split_linear_bias", split_linear_bias),))
    places, _ = find_places(program, UNKNOWN, "cpu")
    inside = {node for ways in places for node in ways[0].lowered.nodes}
    names = [op_name(node) for node in program.graph.nodes if node.op == "call_function"]
    return names, [op_name(node) for node in inside]


def test_written_out_attention_is_the_library_s_before_regions_are_looked_for() -> None:
    args = tuple(torch.randn(2, 3, 9, 8) for _ in range(3))
    names, inside = _regions(Written(), args, WINS)
    assert "aten.scaled_dot_product_attention.default" in names
    assert inside == []


def test_where_the_library_s_attention_lost_the_softmax_is_a_region() -> None:
    args = tuple(torch.randn(2, 3, 9, 8) for _ in range(3))
    names, inside = _regions(Written(), args, LOSES)
    assert "aten.scaled_dot_product_attention.default" not in names
    assert sorted(inside) == ["aten.mul.Tensor", "aten.softmax.int"]


def test_a_batch_norm_is_folded_before_regions_are_looked_for() -> None:
    names, inside = _regions(Convolution(), (torch.randn(2, 3, 9, 9),), WINS)
    assert not any("batch_norm" in name for name in names)
    assert sorted(inside) == ["aten.mul.Tensor", "aten.relu.default"]


def test_products_convolutions_and_attention_are_in_no_region() -> None:
    assert not {packet(name) for name in LOWERINGS} & MATRIX


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "function",
    [
        lambda h, r: layer_norm(h + r, [16]),
        lambda h, r: gelu(h) + r,
        lambda h, r: (h * r).tanh(),
        lambda h, _: gelu(h),
    ],
)
@pytest.mark.parametrize("rows", [4, 4096])
def test_a_bias_that_a_region_takes_over_is_raced_in_the_gemm_as_well(
    function: Any, device: str, rows: int
) -> None:
    """Whatever is predicted on either device, small or large."""
    model = Layer(function).eval()
    program = capture(model, (torch.randn(rows, 16), torch.randn(rows, 16))).program
    run_passes(program, (("split_linear_bias", split_linear_bias),))
    figures = load_device("h200") if device == "cuda" else UNKNOWN
    (ways,), _ = find_places(program, figures, device)
    assert [way.way for way in ways] == ["bias in the kernel", "bias in the GEMM"]
    assert any(SPLIT in node.meta for node in ways[0].lowered.nodes)
    assert not any(SPLIT in node.meta for node in ways[1].lowered.nodes)
    assert ways[0].linears == ways[1].linears
