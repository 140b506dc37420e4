"""Kernels called from their places in a program: a launch is repeated for the shapes that it was
recorded with, and for no others.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from fusion_kernels.launch import keep
from planner.fusion import direct
from planner.fusion.direct import with_direct_launches


class Operator:
    """Doubles a tensor; counts launches through itself."""

    name = "double"

    def __init__(self) -> None:
        self.slow = 0

    def on_cuda(self, x: Tensor) -> Tensor:
        self.slow += 1
        return x * 2

    def recorded(self, x: Tensor) -> Launch:
        return Launch(x.shape)


class Launch:
    def __init__(self, shape: torch.Size) -> None:
        self.shape = shape

    def repeat(self, tensors: tuple[Tensor, ...]) -> Tensor | None:
        if not tensors[0].is_contiguous():
            return None
        assert tensors[0].shape == self.shape, "a launch for other sizes"
        return tensors[0] * 2


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A graph of one call whose operand has these sizes, and the operator that it calls."""

    def place(*sizes: Any) -> tuple[fx.GraphModule, Operator]:
        operator = Operator()
        monkeypatch.setattr(
            direct, "_operator", lambda node: operator if node.op == "call_function" else None
        )
        graph = fx.Graph()
        x = graph.placeholder("x")
        call = graph.call_function(torch.neg, (x,))
        x.meta["val"] = call.meta["val"] = _sized(sizes)
        graph.output(call)
        return with_direct_launches(fx.GraphModule(torch.nn.Module(), graph)), operator

    return place


def _sized(sizes: tuple[Any, ...]) -> Tensor:
    """A fake tensor; a text stands for an open size."""
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    example = torch.empty([7 if isinstance(n, str) else n for n in sizes])
    kinds = [DimDynamic.DYNAMIC if isinstance(n, str) else DimDynamic.STATIC for n in sizes]
    context: Any = StatelessSymbolicContext(dynamic_sizes=kinds)
    return FakeTensorMode(shape_env=ShapeEnv()).from_tensor(example, symbolic_context=context)


def test_a_place_with_open_sizes_keeps_a_launch_for_each(placed: Any) -> None:
    module, operator = placed("batch", 4)
    for rows in (3, 5, 3, 5, 1, 3):
        x = torch.randn(rows, 4)
        assert torch.equal(module(x), x * 2)
    assert operator.slow == 3


def test_a_place_with_open_sizes_starts_other_layouts_through_the_operator(placed: Any) -> None:
    module, operator = placed("batch", 4)
    x = torch.randn(4, 3).t()
    for _ in range(2):
        assert torch.equal(module(x), x * 2)
    assert operator.slow == 2


def test_a_place_of_fixed_sizes_keeps_one_launch(placed: Any) -> None:
    module, operator = placed(3, 4)
    (place,) = [n.target for n in module.graph.nodes if n.op == "call_function"]
    assert not isinstance(place, direct._OpenPlace)
    for _ in range(3):
        module(torch.randn(3, 4))
    assert operator.slow == 1


def test_what_is_kept_of_launches_stays_small() -> None:
    known: dict[int, SimpleNamespace] = {}
    for size in range(5000):
        keep(known, size, SimpleNamespace())
        assert size in known
    assert len(known) <= 512
