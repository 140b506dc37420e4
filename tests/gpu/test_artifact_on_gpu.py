"""An artifact of a model on a CUDA device: its kernels compile and are launched directly after
loading, and the packaged program moves to the CPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

import planner
from fusion_kernels import library
from planner import pipeline
from planner.bench import Race
from planner.report.model import Benchmark
from planner.timing import Comparison

pytestmark = pytest.mark.gpu


class Block(nn.Module):
    """GELU with a residual, then a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(256, 256), nn.LayerNorm(256)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(gelu(self.up(x)) + x)
        return out


def _won(*args: Any, **_: Any) -> Race:
    win = Comparison(2.0, 1.9, 2.1)
    return Race(Benchmark((), 9), dict.fromkeys(args[1], win), win)


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Path, Tensor]:
    monkeypatch.setattr(pipeline, "race", _won)
    x = torch.randn(64, 256, device="cuda")
    fused = planner.fuse(
        Block().cuda().eval(), (x,), compile_peer=False, measure=False, backends=()
    )
    assert fused.fused
    fused.save(tmp_path / "m.pt2")
    return fused, tmp_path / "m.pt2", x


def test_loaded_kernels_are_launched_directly(saved: Any) -> None:
    fused, path, x = saved
    expected = fused(x)
    loaded = planner.load(path)
    for _ in range(3):
        assert torch.equal(loaded(x), expected)
    assert loaded.fallbacks == 0
    places = [node.target for node in loaded._program._module.graph.nodes]
    assert any(getattr(place, "_recorded", None) is not None for place in places)
    used = {f.operator.name for f in fused.plan.chosen}
    assert all("fuseplan_artifact_" in str(library._DEFINED[name].path) for name in used)


def test_the_packaged_program_runs_on_the_cpu(saved: Any) -> None:
    fused, path, x = saved
    loaded = planner.load(path).cpu()
    with pytest.warns(UserWarning, match="packaged program without kernels"):
        out = loaded(x.cpu())
    torch.testing.assert_close(out, fused(x).cpu(), rtol=1e-3, atol=1e-3)
