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

from fusion_kernels.builder import NotLowered
from fusion_kernels.rule import Variant
from fusion_kernels.rules import RULES

VARIANTS = {variant.name: variant for rule in RULES for variant in rule.variants}
NUMBERS = {"eps": 1e-5, "cap": 3.0, "scale": 0.3, "value": float("-inf")}
ROWS = {"ragged": (2, 3), "one row": (1, 1), "empty": (0, 3), "transposed": (2, 3)}

# A view of a tensor without elements has no dimensions to follow: nothing is fused there.
REFUSED = {("rope_interleaved", "empty")}


def _drawn(variant: Variant, name: str, rows: tuple[int, int], generator: Any) -> Tensor:
    """A tensor of [*rows, 257] for the example [4, 8], and likewise for what goes with it; 258
    columns where they are halved or grouped.
    """
    examples = [e for e in variant.examples.values() if isinstance(e, tuple)]
    even = any(e[-1:] == (4,) for e in examples) or "group" in variant.name
    cols = 258 if even else 257
    sizes = {4: rows[0], 8: cols, 16: 7, 1: 1}
    example = variant.examples[name]
    assert isinstance(example, tuple)
    if name in variant.indices:
        return torch.randint(0, sizes[16], rows, generator=generator)
    if len(example) == 2 and example[0] == 4:
        shape = (*rows, cols * example[1] // 8)
    else:
        shape = tuple(sizes[n] for n in example)
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
    function = _function(variant, names)
    if (name, rows) in REFUSED:
        with pytest.raises(NotLowered):
            traced(function, *tensors, name=name)
    else:
        assert_right(traced(function, *tensors, name=name))
