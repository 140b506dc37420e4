"""Dtypes that no kernel takes: one reason, and what stands beside them is fused all the same."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

LEFT = "float64 tensors are left to eager: kernels compute in float32"


def _names(found: Any) -> list[str]:
    return [node.name for ways in found.places for node in ways[0].lowered.nodes]


class Mixed(nn.Module):
    """A chain in float32 beside one in float64, which meet at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.linspace(0, 3, 8, dtype=torch.float64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        single = torch.tanh(x * 2 + 1)
        double = torch.exp(torch.sin(x.double() + self.table))
        return torch.sigmoid(single) * single, double + single


class Scaled(nn.Module):
    """Float64 values without dimensions, which leave float32 tensors float32 in eager."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(1.1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(torch.exp(x * 0.5) + 1) * self.scale + (torch.cos(x) - 2)


@pytest.mark.parametrize("model", [Mixed(), Scaled()], ids=lambda m: type(m).__name__)
def test_the_float32_part_alone_is_fused_and_equals_eager(fuse_all: Any, model: Any) -> None:
    x = torch.randn(5, 8)
    found = fuse_all(model.eval(), (x,))
    assert _names(found)
    assert all(
        node.meta["val"].dtype is torch.float32
        for ways in found.places
        for node in (*ways[0].lowered.nodes, *ways[0].lowered.inputs)
    )
    out, expected = found.module(x), model(x)
    pairs = [(out, expected)] if isinstance(out, Tensor) else zip(out, expected, strict=True)
    for one, other in pairs:
        assert one.dtype is other.dtype
        torch.testing.assert_close(one, other, rtol=2e-6, atol=1e-6)
    assert found.module.fallbacks == 0


def test_every_float64_operator_is_reported_once_with_one_reason(fuse_all: Any) -> None:
    found = fuse_all(Mixed().eval(), (torch.randn(5, 8),))
    about = [m for m in found.rejected if "float64" in m.reason]
    assert {m.reason for m in about} == {LEFT}
    nodes = {m.node for m in about}
    assert len(nodes) == len(about) == 5  # to float64, add, sin, exp, and where the two chains meet
    assert not nodes & set(_names(found))
    assert not [m for m in found.rejected if m.node in nodes and m.reason != LEFT]


def test_a_sum_with_a_float64_tensor_is_float64_and_left_alone(fuse_all: Any) -> None:
    class Meets(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return torch.tanh(x * 2 + 1) + y

    model, x, y = Meets().eval(), torch.randn(5, 8), torch.randn(5, 8, dtype=torch.float64)
    found = fuse_all(model, (x, y))
    assert _names(found) == ["mul", "add", "tanh"]
    out = found.module(x, y)
    assert out.dtype is torch.float64
    torch.testing.assert_close(out, model(x, y), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fnuz], ids=str)
def test_other_dtypes_are_named(grow: Any, dtype: torch.dtype) -> None:
    x = torch.randn(5, 8).to(dtype)
    grown = grow(lambda x: torch.abs(x.to(torch.float32).to(dtype)), x)
    name = str(dtype).removeprefix("torch.")
    reasons = {m.reason for m in grown.rejected}
    assert reasons == {f"{name} tensors have no kernel expression"}
