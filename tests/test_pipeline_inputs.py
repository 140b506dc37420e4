"""A run on inputs, layouts and dtypes of many kinds, in every precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from made_up_machine import (
    Applied,
    block_input,
    failed_rows,
    fuse_unraced,
    small_block,
)
from torch import Tensor, nn
from torch.nn.functional import gelu

from planner.fusion.precision import UnknownPrecision

# --- inputs of many kinds --------------------------------------------------------------------


@pytest.mark.usefixtures("machine")
def test_none_numbers_and_nests_are_inputs_like_any() -> None:
    def form(m: Any, x: Tensor, mask: Any, scale: int, extras: Any) -> Any:
        h = gelu(x * scale + m.bias) + extras["a"][0]
        return {"h": h if mask is None else h * mask, "scale": scale}

    model = Applied(form).eval()
    args = (block_input(), None, 2, {"a": [block_input() + 1, None]})
    fused = fuse_unraced(model, *args)
    assert fused.fused
    assert failed_rows(fused.report) == []
    torch.testing.assert_close(fused(*args), model(*args))
    assert fused.fallbacks == 0


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(1, 2, 24))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale * torch.tensor(2.0)


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(24)
        self.register_buffer("table", torch.linspace(0, 1, 24), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(x + self.table)
        return out


@pytest.mark.usefixtures("machine")
def test_a_constant_ahead_of_a_buffer_that_no_state_dict_holds() -> None:
    """torch lists the two as the modules stand, and so does every Llama."""
    model = nn.Sequential(Scaled(), Table()).eval()
    fused = fuse_unraced(model, block_input())
    assert fused.fused
    torch.testing.assert_close(fused(block_input()), model(block_input()))
    assert fused.fallbacks == 0


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("layout", ["transposed", "expanded"])
def test_an_example_in_another_layout_is_verified_fused(layout: str) -> None:
    base = torch.randn(24, 5).t() if layout == "transposed" else block_input(1).expand(5, 24)
    fused = fuse_unraced(small_block(), base)
    assert fused.fused
    assert failed_rows(fused.report) == []
    fused(base)
    assert fused.fallbacks == 0


@pytest.mark.usefixtures("machine")
def test_a_program_that_refuses_its_own_example_is_not_used() -> None:
    def forward(m: Any, x: Tensor, y: Tensor) -> Tensor:
        x.add_(0.0)
        return gelu(y + m.bias) * 2

    x = block_input()
    fused = fuse_unraced(Applied(forward).eval(), x, x)
    assert not fused.fused
    assert fused.report.outcome is not None
    assert "does not take its own example: inputs share" in fused.report.outcome.reason


@pytest.mark.usefixtures("machine")
def test_a_model_under_autocast_is_verified_and_fused_for_it() -> None:
    model, x = small_block(), block_input()
    with torch.autocast("cpu", torch.bfloat16):
        fused = fuse_unraced(model, x)
        assert fused.fused
        assert failed_rows(fused.report) == []
        out, expected = fused(x), model(x)
        assert fused.fallbacks == 0
    assert out.dtype is expected.dtype
    whole = [row for row in fused.report.numerics if row.subject == "Block"]
    assert min(row.eager_error or 0.0 for row in whole) > 1e-4  # eager ran in 16 bits
    with pytest.warns(UserWarning, match="autocast is off, the program was captured under"):
        assert torch.equal(fused(x), model(x))


# --- precision -------------------------------------------------------------------------------


class Rounding(nn.Module):
    """Rounds to bfloat16 between two chains in float32, as a norm of a 16-bit model does."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        rounded = (gelu(self.fc(x)) * x).to(torch.bfloat16)
        return torch.tanh(rounded.float() + x)


@pytest.mark.usefixtures("machine")
def test_high_precision_leaves_casts_out_of_kernel_and_reference() -> None:
    torch.manual_seed(0)
    model, x = Rounding().eval(), block_input()
    runs = {name: fuse_unraced(model, x, precision=name) for name in ("exact", "high")}
    truth = model.double()
    exact = torch.tanh(gelu(truth.fc(x.double())) * x.double() + x.double())
    errors = {
        name: torch.linalg.vector_norm(fused(x).double() - exact) for name, fused in runs.items()
    }
    for name, fused in runs.items():
        assert fused.fused
        assert fused.report.precision == name
        assert failed_rows(fused.report) == []
        assert ("to_copy" in str(fused.plan.chosen[0].candidate.lowered.region)) == (
            name == "exact"
        )
    assert errors["high"] < 1e-5 < 1e-3 < errors["exact"]
    (row,) = runs["high"].report.fusions
    assert set(row.unrounded) < set(row.nodes)
    assert len(row.unrounded) == 1
    assert all(not row.unrounded for row in runs["exact"].report.fusions)


def test_an_unknown_precision_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownPrecision, match="exact or high"):
        fuse_unraced(small_block(), block_input(), precision="low")


# --- 8-bit storage ---------------------------------------------------------------------------


class Quantized(nn.Module):
    """A weight stored in 8 bits with a scale a row, an 8-bit input, and an 8-bit result."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.randn(16, 24)
        self.register_buffer("scale", weight.abs().amax(1, keepdim=True) / 448)
        self.register_buffer("codes", (weight / self.scale).to(torch.float8_e4m3fn))

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        weight = self.codes.to(torch.float32) * self.scale
        h = nn.functional.linear(x, weight) + residual.to(torch.float32)
        scale = h.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 448
        return (h / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


@pytest.mark.usefixtures("machine")
def test_8_bit_storage_is_read_and_written_by_kernels() -> None:
    torch.manual_seed(0)
    model, x = Quantized().eval(), block_input()
    residual = torch.randn(5, 16).to(torch.float8_e5m2)
    fused = fuse_unraced(model, x, residual)
    assert fused.fused
    assert failed_rows(fused.report) == []
    assert "float8_e4m3fn" in {row.dtype for row in fused.report.numerics}
    nodes = [row.nodes for row in fused.report.fusions]
    assert [len(names) for names in nodes] == [2, 9]
    codes, scale = fused(x, residual)
    expected, expected_scale = model(x, residual)
    assert codes.dtype is torch.float8_e4m3fn
    torch.testing.assert_close(scale, expected_scale)
    apart = codes.view(torch.uint8).int() - expected.view(torch.uint8).int()
    assert apart.abs().max() <= 1
