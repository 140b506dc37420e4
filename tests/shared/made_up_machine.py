"""Small models, and a machine whose races are won by whom the test says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

import planner
from planner.bench import Race
from planner.fusion.module import FusedModule
from planner.report.model import Benchmark, BenchmarkRow, NumericsRow, Report
from planner.timing import Comparison, Timing


class Block(nn.Module):
    """GELU with a residual, then a residual with a norm: a place for each named rule."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        h = gelu(self.up(x)) + x
        out: Tensor = self.norm(self.down(h) + h)
        return out


class Applied(nn.Module):
    """A function of itself and its inputs, with a weight and a buffer."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function, self.bias = function, nn.Parameter(torch.linspace(-1, 1, 24))
        self.register_buffer("count", torch.zeros(24))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def block_input(rows: int = 5) -> Tensor:
    return torch.randn(rows, 24, generator=torch.Generator().manual_seed(0))


def small_block() -> Block:
    torch.manual_seed(0)
    return Block().eval()


def made_up(calls: Mapping[str, Callable[[], object]], *_: Any, **__: Any) -> dict[str, Timing]:
    return {name: Timing((10.0 if name == "before" else 5.0,) * 9) for name in calls}


def even(calls: Mapping[str, Callable[[], object]], *_: Any, **__: Any) -> dict[str, Timing]:
    return {name: Timing((5.0,) * 9) for name in calls}


def race_won_by(fused: float, normalized: float) -> Callable[..., Race]:
    """A race where the two are that many times as fast as eager, give or take 0.1."""
    ratios = {"fused": fused, "normalized": normalized}

    def race(eager: nn.Module, ours: Any, args: Any, kwargs: Any, *_: Any, **__: Any) -> Race:
        with torch.no_grad():
            for module in (eager, *ours.values()):
                module(*args, **kwargs)
        rows = tuple(
            BenchmarkRow(name, 1.0, 1.0, 1.0, ratios.get(name), 0.1, None)
            for name in ("eager", *ours)
        )
        against = {name: about(ratios[name]) for name in ours}
        kernels = about(fused / normalized) if len(ours) == 2 else None
        return Race(Benchmark(rows, 9), against, kernels)

    return race


def about(ratio: float) -> Comparison:
    return Comparison(ratio, ratio - 0.1, ratio + 0.1)


def fuse_unraced(model: nn.Module, *args: Any, **options: Any) -> FusedModule:
    settings = {"compile_peer": False, "measure": False, "backends": (), **options}
    return planner.fuse(model, args, **settings)


def failed_rows(report: Report) -> list[NumericsRow]:
    return [row for row in report.numerics if not row.passed]
