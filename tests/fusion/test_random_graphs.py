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
Step = Callable[[random.Random, list[Any], list[Any], Any], Any]


def _full(source: random.Random, values: list[Any]) -> Any:
    return source.choice(values)


STEPS: tuple[Step, ...] = (
    lambda s, full, small, w: _full(s, full) + _full(s, full),
    lambda s, full, small, w: _full(s, full) * torch.sigmoid(_full(s, full)),
    lambda s, full, small, w: _full(s, full) - s.choice(small),
    lambda s, full, small, w: torch.maximum(_full(s, full), _full(s, full)),
    lambda s, full, small, w: gelu(_full(s, full), approximate=s.choice(("none", "tanh"))),
    lambda s, full, small, w: gelu(_full(s, full) + s.choice(small[:2])) + _full(s, full),
    lambda s, full, small, w: layer_norm(_full(s, full) + _full(s, full), [COLS], *small[:2]),
    lambda s, full, small, w: relu(_full(s, full)),
    lambda s, full, small, w: torch.where(_full(s, full) > 0.1, _full(s, full), 0.5),
    lambda s, full, small, w: _full(s, full).tanh(),
    lambda s, full, small, w: _full(s, full).sin() * 1.5 + 0.25,
    # barriers: a region may not hold these, and paths through them make cycles possible
    lambda s, full, small, w: _full(s, full).view(COLS, ROWS).tanh().reshape(ROWS, COLS),
    lambda s, full, small, w: _full(s, full) @ w,
    lambda s, full, small, w: _full(s, full) + _full(s, full).mean(-1, keepdim=True),
    lambda s, full, small, w: _full(s, full) + _full(s, full).amax(0),
    lambda s, full, small, w: _full(s, full).softmax(-1),
)


def _program(seed: int) -> Callable[..., Any]:
    """A function of five tensors made of 18 random steps; it returns some of what it made."""

    def run(x: Any, y: Any, vector: Any, shift: Any, weight: Any) -> Any:
        source = random.Random(seed)
        full, small = [x, y], [vector, shift]
        for _ in range(18):
            full.append(source.choice(STEPS)(source, full[-7:], small, weight))
            if source.random() < 0.2:
                small.append(source.choice(small[:2]) * 0.5)
        return (full[-1], *source.sample(full[2:-1], 3))

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
