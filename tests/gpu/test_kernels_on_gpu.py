"""The named rules on a CUDA device: the numerics contract in three dtypes, repeats of a launch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import planner
from fusion_kernels.inputs import draw, generator_for
from fusion_kernels.library import FusedOperator, define
from fusion_kernels.tolerances import check
from planner.cost.devices import device_for
from planner.draws import draw_like
from planner.fusion.candidate import Candidate
from planner.fusion.places import find_places
from planner.fusion.plan import write_kernel
from planner.verify import verify_region

pytestmark = pytest.mark.gpu

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((16, 33, 768), (7, 257), (1, 1000))


class GeluResidual(nn.Module):
    def __init__(self, approximate: str) -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(x, approximate=self.approximate) + residual


class AddNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(width))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.bias + residual)


def kernel_of(
    module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, folder: Path
) -> tuple[Candidate, FusedOperator]:
    module = module.to("cuda", dtype).eval()
    example = (torch.randn(shape, dtype=dtype, device="cuda"),) * 2
    captured = planner.capture(module, (example[0], example[1].clone()))
    ((way, *_),), _ = find_places(captured.program, device_for("cuda:0"), "cuda:0")
    return way, define(way.source, write_kernel(way.source, folder))


def assert_within_contract(out: torch.Tensor, reference: torch.Tensor) -> None:
    assert [result for result in check(out, reference) if not result.passed] == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rule", ["none", "tanh", "norm"])
def test_numerics_contract(
    rule: str, shape: tuple[int, ...], dtype: torch.dtype, tmp_path: Path
) -> None:
    module = AddNorm(shape[-1]) if rule == "norm" else GeluResidual(rule)
    way, operator = kernel_of(module, shape, dtype, tmp_path)
    rows = verify_region(way.lowered, operator, "cuda:0", seed=1)
    assert [row for row in rows if not row.passed] == []


def test_a_repeated_launch_gives_what_the_first_gave(tmp_path: Path) -> None:
    _, operator = kernel_of(GeluResidual("none"), (64, 256), torch.bfloat16, tmp_path)
    for seed in range(4):
        torch.manual_seed(seed)
        x, residual = torch.randn(2, 64, 256, dtype=torch.bfloat16, device="cuda")
        expected = nn.functional.gelu(x.double()) + residual.double()
        assert_within_contract(operator.overload(x, residual), expected)


def test_an_unaligned_view_is_not_taken_for_an_aligned_one(tmp_path: Path) -> None:
    _, operator = kernel_of(GeluResidual("none"), (64, 256), torch.float32, tmp_path)
    storage = torch.randn(64 * 256 + 1, device="cuda")
    residual = torch.randn(64, 256, device="cuda")
    for x in (storage[:-1].view(64, 256), storage[1:].view(64, 256)):
        expected = nn.functional.gelu(x.double()) + residual.double()
        assert_within_contract(operator.overload(x, residual), expected)


def test_whole_model_on_cuda(tmp_path: Path) -> None:
    torch.manual_seed(0)
    width = 512
    model = nn.Sequential(
        nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.LayerNorm(width)
    )
    model = model.to("cuda", torch.bfloat16).eval()
    x = torch.randn(64, width, dtype=torch.bfloat16, device="cuda")
    fused = planner.fuse(model, (x,), out=tmp_path, compile_peer=False, backends=("cuda",))
    assert all(row.passed for row in fused.report.numerics)
    assert fused.report.unlinked_share is not None
    assert fused.report.unlinked_share < 0.05
    with torch.no_grad():
        error = (fused(x).double() - model(x).double()).norm() / model(x).double().norm()
    assert error < 1e-2


def test_large_tensors_are_drawn_on_the_device_and_a_seed_fixes_them() -> None:
    shape = (3, 1 << 20)
    assert generator_for(3 << 20, "cuda:0", 0).device.type == "cuda"
    drawn = [draw(shape, torch.bfloat16, seed, device="cuda:0") for seed in (7, 7, 8)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert drawn[0].float().std().item() == pytest.approx(1.0, rel=0.01)
    for dtype in (torch.int64, torch.bool):
        assert draw(shape, dtype, 7, device="cuda:0").is_cuda


def test_a_large_input_of_a_model_is_drawn_with_the_examples_spread() -> None:
    example = 3 + 0.5 * torch.randn(3, 1 << 20, device="cuda:0")
    (drawn,), _ = draw_like((example,), {}, 0)
    assert drawn.device == example.device
    assert drawn.mean().item() == pytest.approx(3.0, rel=0.01)
    assert drawn.std().item() == pytest.approx(0.5, rel=0.01)
    (ids,), _ = draw_like((torch.arange(3 << 20, device="cuda:0"),), {}, 0)
    assert torch.equal(ids.sort().values, torch.arange(3 << 20, device="cuda:0"))
