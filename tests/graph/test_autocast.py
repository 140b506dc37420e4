"""Autocast regions and autocast around a capture: casts become operators, equal to eager's."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import planner
from planner.graph.autocast import Autocast, ambient_dtype, autocast_of, without_autocast
from planner.graph.export import second_program
from planner.graph.view import op_name


class Mixed(nn.Module):
    """A linear in 16 bits, a norm kept in float32 within it, and a tail outside."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.dtype = dtype
        self.fc = nn.Linear(24, 24)
        self.norm = nn.LayerNorm(24)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", self.dtype):
            y = self.fc(x)
            with torch.autocast("cpu", enabled=False):
                z = self.norm(y.float()).exp() + self.fc(x)
            again = self.fc(torch.nn.functional.gelu(y) * z)
        return torch.relu(again) + 1, z


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.fc(x).relu() + x, -1)


class LeavesIt(nn.Module):
    """Leaves whatever autocast is on around the call for one linear, then enters it again."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            y = self.fc(x)
        return torch.sigmoid(self.fc(y) * y)


def _x() -> Tensor:
    return torch.randn(5, 24)


def _equal(ours: Any, theirs: Any) -> None:
    both = zip(*((v,) if isinstance(v, Tensor) else v for v in (ours, theirs)), strict=True)
    for one, other in both:
        assert one.dtype is other.dtype
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_nested_regions_are_operators_and_casts_equal_to_eager(dtype: torch.dtype) -> None:
    model, x = Mixed(dtype).eval(), _x()
    program = planner.capture(model, (x,)).program
    names = [op_name(node) for node in program.graph.nodes if node.op == "call_function"]
    assert all(name.startswith("aten.") for name in names)
    assert {"aten.linear.default", "aten.layer_norm.default", "aten.gelu.default"} <= set(names)
    casts = [n for n in program.graph.nodes if op_name(n) == "aten._to_copy.default"]
    assert {n.meta["val"].dtype for n in casts} == {dtype, torch.float32}
    other = _x()
    _equal(program.module()(other), model(other))


def test_the_graph_that_is_ranked_has_the_dtypes_of_the_region() -> None:
    graph = planner.capture(Mixed().eval(), (_x(),)).graph
    linears = [node for node in graph if node.op == "aten.linear.default"]
    assert [node.outputs[0].dtype for node in linears] == ["bfloat16", "float32", "bfloat16"]


@pytest.mark.parametrize("model", [Plain(), LeavesIt(), Mixed()], ids=lambda m: type(m).__name__)
@torch.no_grad()
def test_autocast_around_the_capture_is_in_the_program(model: nn.Module) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        program = planner.capture(model.eval(), (_x(),)).program
        other = _x()
        expected = model(other)
    regions = not isinstance(model, Plain)
    assert autocast_of(program) == Autocast("bfloat16", regions)
    _equal(program.module()(other), expected)


def test_a_capture_without_autocast_says_so() -> None:
    assert autocast_of(planner.capture(Plain().eval(), (_x(),)).program) == Autocast()
    assert autocast_of(planner.capture(Mixed().eval(), (_x(),)).program) == Autocast(None, True)


def test_a_copy_of_the_program_remembers_it() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        program = planner.capture(Plain().eval(), (_x(),)).program
    assert autocast_of(second_program(program)) == autocast_of(program) == Autocast("bfloat16")


def test_the_ambient_dtype_is_that_of_the_device() -> None:
    with torch.autocast("cpu", torch.float16):
        assert ambient_dtype("cpu") == "float16"
        assert ambient_dtype("meta") is None
        with without_autocast():
            assert ambient_dtype("cpu") is None
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32
        assert ambient_dtype("cpu") == "float16"
