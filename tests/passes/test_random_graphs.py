"""Small random graphs of pointwise, view and copy operators: all passes, then bit for bit eager,
results apart where eager's are.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from planner.passes.linear_bias import merge_linear_bias, split_linear_bias
from planner.passes.normalize import NORMALIZE
from planner.passes.rewrites import REWRITES

ROWS, COLUMNS = 4, 6
GRAPHS = 30

UNARY: Sequence[Callable[[Tensor], Tensor]] = (
    torch.relu,
    torch.sin,
    torch.neg,
    lambda x: x + 0,
    lambda x: x * 2,
    lambda x: x.clone(),
    lambda x: x.contiguous(),
    lambda x: x.view(x.shape),
    lambda x: x.reshape(-1).view(x.shape) if x.is_contiguous() else x,
    lambda x: x.t().contiguous().t(),
    lambda x: x.t().clone().t(),
    lambda x: x.to(torch.float64).to(torch.float32),
    lambda x: x.to(torch.float32),
    lambda x: x.t().t(),
    lambda x: x.reshape(-1).reshape(x.shape),
    lambda x: x[None].flatten(0, 1),
    lambda x: x.to(torch.float16).to(torch.float32),
    lambda x: torch.sin(x) + torch.sin(x).t().contiguous().t(),
    lambda x: x.expand(x.shape),
    lambda x: x[:, :],
    lambda x: x.detach(),
    lambda x: torch.cat(x.split(2)),
    lambda x: x.split(2)[0].clone().repeat(2, 1),
    lambda x: torch.dropout(x, 0.5, False),
    lambda x: x.masked_fill(torch.ones(COLUMNS, dtype=torch.bool).logical_not(), 0.0),
)
BINARY: Sequence[Callable[[Tensor, Tensor], Tensor]] = (
    torch.add,
    torch.sub,
    torch.mul,
    lambda x, y: torch.where(x > y, x, y),
    lambda x, _: x + torch.arange(COLUMNS).float(),
    lambda x, y: x + torch.zeros(()).expand(ROWS, COLUMNS) * y,
)


def random_function(seed: int) -> Callable[..., tuple[Tensor, ...]]:
    """A function of two matrices; which operators it runs depends on `seed` alone."""

    def function(*inputs: Tensor) -> tuple[Tensor, ...]:
        draw = random.Random(seed)
        values = list(inputs)
        for _ in range(draw.randint(3, 9)):
            if draw.random() < 0.3:
                made = draw.choice(BINARY)(draw.choice(values), draw.choice(values))
            else:
                made = draw.choice(UNARY)(draw.choice(values[-3:]))
            values.append(made)
        return tuple(draw.sample(values, draw.randint(1, 3)))

    return function


@pytest.mark.parametrize("seed", range(GRAPHS))
def test_all_passes_keep_values_strides_and_sharing(export: Any, seed: int) -> None:
    torch.manual_seed(seed)
    transposed = torch.randn(COLUMNS, ROWS).t()
    exported = export(random_function(seed), torch.randn(ROWS, COLUMNS), transposed)
    exported.apply(
        *(change for _, change in (*NORMALIZE, *REWRITES)), split_linear_bias, merge_linear_bias
    )
    exported.require_equal(torch.randn(ROWS, COLUMNS), torch.randn(COLUMNS, ROWS).t())
