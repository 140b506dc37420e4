"""Programs with open sizes on a CUDA device: every size from one module, rows of open length, a
handful of compiled kernels, launches kept by shape.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.functional import gelu

import planner
from fusion_kernels.tolerances import check
from planner import pipeline
from planner.bench import Race
from planner.fusion import plan as planning
from planner.fusion.module import FusedModule
from planner.report.model import Benchmark
from planner.timing import Comparison

pytestmark = pytest.mark.gpu


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(256, 256), nn.LayerNorm(256)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        y = gelu(self.fc(x.reshape(batch * time, width))).reshape(batch, time, width)
        out: Tensor = self.norm(x + y)
        return out


class Scores(nn.Module):
    def forward(self, scores: Tensor, bias: Tensor) -> Tensor:
        return torch.softmax(scores * 0.125 + bias, -1)


def _won(*args: Any, **_: Any) -> Race:
    win = Comparison(2.0, 1.9, 2.1)
    return Race(Benchmark((), 9), dict.fromkeys(args[1], win), win)


def _fused(monkeypatch: pytest.MonkeyPatch, model: nn.Module, *args: Any) -> FusedModule:
    """With every kernel that is right in it."""
    monkeypatch.setattr(pipeline, "race", _won)
    monkeypatch.setattr(planning, "decide", lambda *_: (True, "in this test"))
    options: Any = {"compile_peer": False, "measure": False, "backends": ()}
    fused = planner.fuse(model, *args, **options)
    assert fused.fused, fused.report.outcome
    return fused


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_size_from_one_module(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Block().cuda().eval().to(dtype)
    shapes = {"x": {0: Dim("batch", min=0, max=64), 1: Dim("time", min=1, max=512)}}
    x = torch.randn(1, 33, 256, device="cuda", dtype=dtype)
    fused = _fused(monkeypatch, model, (x,), {}, shapes)
    exact = Block().cuda().eval().double()
    exact.load_state_dict(model.state_dict())
    with torch.no_grad():
        for size in ((1, 33), (1, 1), (0, 7), (3, 257), (64, 512), (5, 1), (1, 33)):
            x = torch.randn(*size, 256, device="cuda", dtype=dtype)
            out, eager, wanted = fused(x), model(x), exact(x.double())
            ours, theirs = ((r.double() - wanted).norm() for r in (out, eager))
            assert float(ours) <= 1.1 * float(theirs) + 1e-5 * float(wanted.norm()), size
    assert fused.fallbacks == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rows_of_open_length_compile_a_kernel_for_each_power_of_two(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = Dim("keys", min=1, max=70000)
    shapes = {"scores": {0: Dim("batch", min=0, max=8), 3: keys}, "bias": {3: keys}}

    def given(batch: int, length: int) -> tuple[Tensor, Tensor]:
        scores = torch.randn(batch, 4, 3, length, device="cuda", dtype=dtype)
        return scores, torch.randn(1, 1, 1, length, device="cuda", dtype=dtype)

    fused = _fused(monkeypatch, Scores().eval(), given(2, 100), {}, shapes)
    for length in (1, 2, 7, 16, 100, 257, 1000, 4096, 5000, 46336, 65537):
        tensors = given(2, length)
        wanted = Scores()(*(t.double() for t in tensors))
        assert all(result.passed for result in check(fused(*tensors), wanted)), length
    assert fused(*given(0, 9)).shape == (0, 4, 3, 9)
    (operator,) = {fusion.operator.name: fusion.operator for fusion in fused.plan.chosen}.values()
    jitted = operator._launcher._recorder.kernel  # type: ignore[union-attr]
    compiled = sum(len(caches[0]) for caches in jitted.device_caches.values())
    for length in range(600, 1000):
        fused(*given(2, length))
    again = sum(len(caches[0]) for caches in jitted.device_caches.values())
    # One block length; what divides the length, which decides how wide loads are.
    assert again - compiled <= 8
    assert fused.fallbacks == 0


def test_a_launch_is_kept_for_each_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = Block().cuda().eval(), {0: Dim("batch", min=0, max=64)}
    x = torch.randn(2, 16, 256, device="cuda")
    fused = _fused(monkeypatch, model, (x,), {}, {"x": rows})
    with torch.no_grad():
        for batch in (2, 5, 2, 5, 9):
            x = torch.randn(batch, 16, 256, device="cuda")
            torch.testing.assert_close(fused(x), model(x), rtol=1e-3, atol=1e-3)
    places = [node.target for node in fused._program._module.graph.nodes]  # type: ignore[union-attr]
    kept = [place._recorded for place in places if hasattr(place, "_recorded")]
    assert kept
    assert all(len(launches) == 3 for launches in kept)
