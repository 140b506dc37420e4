"""Whatever graph comes, the fused one computes the same, in order, without a cycle."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import gelu, layer_norm, relu

from fusion_kernels.lowering import POINTWISE

ROWS, COLS = 4, 8


class Pool:
    """What a random step may read: the last full tensors, vectors, and one matrix."""

    def __init__(self, seed: int, full: list[Any], vectors: list[Any], weight: Any) -> None:
        self.source = random.Random(seed)
        self.all, self.vectors, self.weight = full, vectors, weight

    def full(self) -> Any:
        return self.source.choice(self.all[-7:])

    def vector(self) -> Any:
        return self.source.choice(self.vectors)

    def step(self) -> None:
        self.all.append(self.source.choice(STEPS)(self))
        if self.source.random() < 0.2:
            self.vectors.append(self.vector() * 0.5)


STEPS: tuple[Callable[[Pool], Any], ...] = (
    lambda p: p.full() + p.full(),
    lambda p: p.full() * torch.sigmoid(p.full()),
    lambda p: p.full() - p.vector(),
    lambda p: torch.maximum(p.full(), p.full()),
    lambda p: gelu(p.full(), approximate=p.source.choice(("none", "tanh"))),
    lambda p: gelu(p.full() + p.vector()) + p.full(),
    lambda p: layer_norm(p.full() + p.full(), [COLS], *p.vectors[:2]),
    lambda p: relu(p.full()),
    lambda p: torch.where(p.full() > 0.1, p.full(), 0.5),
    lambda p: p.full().tanh(),
    lambda p: p.full().sin() * 1.5 + 0.25,
    # barriers: a region may not hold these, and paths through them make cycles possible
    lambda p: p.full().view(COLS, ROWS).tanh().reshape(ROWS, COLS),
    lambda p: p.full() @ p.weight,
    lambda p: p.full() + p.full().mean(-1, keepdim=True),
    lambda p: p.full() + p.full().amax(0),
    lambda p: p.full().softmax(-1),
)


def _program(seed: int) -> Callable[..., Any]:
    """A function of five tensors made of 18 random steps; it returns some of what it made."""

    def run(x: Any, y: Any, vector: Any, shift: Any, weight: Any) -> Any:
        pool = Pool(seed, [x, y], [vector, shift], weight)
        for _ in range(18):
            pool.step()
        return (pool.all[-1], *pool.source.sample(pool.all[2:-1], 3))

    return run


@pytest.mark.parametrize("seed", range(40))
def test_a_random_graph_fuses_to_the_same_values(grow: Any, rewritten: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    sizes = ((ROWS, COLS), (ROWS, COLS), (COLS,), (COLS,), (COLS, COLS))
    tensors = [torch.randn(size, generator=generator) / 2 for size in sizes]
    function = _program(seed)
    grown = grow(function, *tensors)
    expected = grown.module(*tensors)
    pointwise = [n for n in grown.module.graph.nodes if str(n.target) in POINTWISE]
    inside = [node for plan in grown.plans for node in plan.lowered.nodes]
    said = {m.node for m in grown.rejected}
    alone = [node.name for node in pointwise if node not in inside]

    module = rewritten(grown)
    calls = [n for n in module.graph.nodes if str(n.target).startswith("fuseplan.")]

    assert len(inside) == len(set(inside))
    assert set(alone) <= said
    assert len(calls) == len(grown.plans) > 0
    assert all(len(plan.lowered.region.inputs) <= 16 for plan in grown.plans)
    for out, wanted in zip(module(*tensors), expected, strict=True):
        torch.testing.assert_close(out, wanted, rtol=2e-5, atol=2e-5)
