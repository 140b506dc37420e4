"""The whole chain with open sizes: what is verified, what the report says, what runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.functional import gelu

import planner
from planner import pipeline
from planner.bench import Race
from planner.fusion import contest
from planner.fusion.module import FusedModule
from planner.report.model import Benchmark
from planner.timing import Comparison, Timing

SHAPES = {"x": {0: Dim("batch", min=0, max=8), 1: Dim("time", min=1, max=64)}}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(12, 12), nn.LayerNorm(12)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        y = gelu(self.fc(x.reshape(batch * time, width))).reshape(batch, time, width)
        out: Tensor = self.norm(x + y)
        return out


def _made_up(calls: Mapping[str, Callable[[], object]], *_: Any, **__: Any) -> dict[str, Timing]:
    return {name: Timing((10.0 if name == "before" else 5.0,) * 9) for name in calls}


def _won(*args: Any, **_: Any) -> Race:
    against = {name: Comparison(2.0, 1.9, 2.1) for name in args[1] if name == "fused"}
    return Race(Benchmark((), 9), against, Comparison(2.0, 1.9, 2.1))


@pytest.fixture(scope="module")
def model() -> Block:
    torch.manual_seed(0)
    return Block().eval()


@pytest.fixture(scope="module")
def fused(model: Block, uncompiled: Any) -> Iterator[FusedModule]:
    """Fused from one example of one row; kernels run operation by operation and win."""
    with pytest.MonkeyPatch.context() as patch, uncompiled():
        patch.setattr(contest, "interleaved", _made_up)
        patch.setattr(pipeline, "race", _won)
        options: Any = {"compile_peer": False, "backends": ("cpu",)}
        yield planner.fuse(model, (torch.randn(1, 7, 12),), {}, SHAPES, **options)


def test_one_module_from_one_request_serves_all(fused: FusedModule, model: Block) -> None:
    assert fused.fused
    for size in ((1, 7), (3, 7), (0, 7), (1, 1), (8, 64), (5, 33)):
        x = torch.randn(*size, 12)
        torch.testing.assert_close(fused(x), model(x))
    assert fused.fallbacks == 0


def test_the_whole_is_verified_at_other_sizes_too(fused: FusedModule) -> None:
    rows = [row for row in fused.report.numerics if row.subject == "Block"]
    assert all(row.passed for row in rows)
    (case,) = {row.case for row in rows if "at sizes" in row.case}
    sizes = case.split("at sizes ")[1].split(", ")
    assert len(sizes) >= 3
    assert {"0 x 1", "1 x 1"} <= set(sizes)


@pytest.mark.parametrize("fault", ["another value", "an exception"])
def test_a_fault_at_another_size_is_found(
    fault: str, model: Block, monkeypatch: Any, uncompiled: Any
) -> None:
    """A kernel that is right for the captured rows only."""
    from fusion_kernels import evaluate as evaluating
    from fusion_kernels import library
    from fusion_kernels.cpu import CpuRegion

    def for_one_size(region: Any, reuse: int | None = None) -> CpuRegion:
        def run(*tensors: Tensor) -> tuple[Tensor, ...]:
            results = evaluating.evaluate(region, tensors)
            other = any(t.dim() == 3 and t.shape[1] != 7 for t in tensors)
            if other and fault == "an exception":
                raise RuntimeError("planted")
            results = tuple(r + other for r in results)
            return results if reuse is None else (tensors[reuse].copy_(results[0]),)

        return CpuRegion(run, "planted")

    with uncompiled():
        monkeypatch.setattr(contest, "interleaved", _made_up)
        monkeypatch.setattr(pipeline, "race", _won)
        monkeypatch.setattr(library, "compile_region", for_one_size)
        options: Any = {"compile_peer": False, "measure": False, "backends": ()}
        found = planner.fuse(model, (torch.randn(2, 7, 12),), {}, SHAPES, **options)
    assert not found.fused
    failed = [row for row in found.report.numerics if not row.passed]
    assert failed
    assert all("at sizes" in row.case for row in failed)


def test_the_report_says_which_sizes_are_open(fused: FusedModule) -> None:
    assert fused.report.capture.passes[0].notes == (
        "open sizes: dimension 0 of 'x' from 0 to 8, dimension 1 of 'x' from 1 to 64",
    )
    assert fused.report.model.inputs == {"0": "float32[2, 7, 12]"}


@pytest.mark.parametrize("verb", [planner.audit, pipeline.rank])
def test_other_verbs_take_open_sizes(verb: Any, model: Block) -> None:
    report = verb(model, (torch.randn(2, 7, 12),), {}, SHAPES)
    assert any("open sizes" in note for note in report.capture.passes[0].notes)
    assert {row.op for row in report.ops} >= {"aten.linear.default", "aten.gelu.default"}
