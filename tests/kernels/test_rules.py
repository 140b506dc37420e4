"""Every variant of every named rule against its pattern in float64: as torch operations and as
Triton text, over ragged, single, empty and transposed rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fusion_kernels.rule import Variant
from fusion_kernels.rules import RULES

VARIANTS = {variant.name: variant for rule in RULES for variant in rule.variants}
NUMBERS = {"eps": 1e-5, "cap": 3.0, "scale": 0.3, "value": float("-inf")}
ROWS = {"ragged": (2, 3), "one row": (1, 1), "empty": (0, 3), "transposed": (2, 3)}


def _drawn(variant: Variant, name: str, rows: tuple[int, int], generator: Any) -> Tensor:
    """A tensor of [*rows, 257], or the vector, condition or half of it that the example shows."""
    example = variant.examples[name]
    assert isinstance(example, tuple)
    halves = any(isinstance(e, tuple) and e[-1:] == (4,) for e in variant.examples.values())
    cols = {8: 258 if halves else 257, 4: 129, 1: 1}
    leading = {1: (), 2: rows, 3: (rows[0], 1)}[len(example)] if 1 not in example[:1] else (1,)
    shape = (*leading, cols[example[-1]])
    drawn = 2 * torch.randn(shape, generator=generator)
    return drawn > 0 if name in variant.masks else drawn


def _function(variant: Variant, names: list[str]) -> Callable[..., Any]:
    parameters = inspect.signature(variant.pattern).parameters
    numbers = {n: NUMBERS[n] for n in parameters if isinstance(variant.examples.get(n), float)}
    return lambda *tensors: variant.pattern(**dict(zip(names, tensors, strict=True)), **numbers)


def _transposed(tensor: Tensor) -> Tensor:
    """The same values, with the first two dimensions' order in memory changed."""
    if tensor.dim() < 2:
        return tensor
    return tensor.transpose(0, 1).contiguous().transpose(0, 1)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_rule_s_kernel_is_right(name: str, rows: str, traced: Any, assert_right: Any) -> None:
    variant = VARIANTS[name]
    generator = torch.Generator().manual_seed(len(name))
    parameters = inspect.signature(variant.pattern).parameters
    names = [n for n in parameters if isinstance(variant.examples.get(n), tuple)]
    tensors = [_drawn(variant, n, ROWS[rows], generator) for n in names]
    if rows == "transposed":
        tensors = [_transposed(t) for t in tensors]
    assert_right(traced(_function(variant, names), *tensors, name=name))
