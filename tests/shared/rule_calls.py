"""Calls of the named rules' variants: each pattern as a function of tensors, and ragged tensors for
it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fusion_kernels.rule import Variant
from fusion_kernels.rules import RULES

VARIANTS = {variant.name: variant for rule in RULES for variant in rule.variants}
NUMBERS = {"eps": 1e-5, "cap": 3.0, "scale": 0.3, "value": float("-inf")}


@dataclass(frozen=True, slots=True)
class RuleCall:
    """`function(*tensors)` is a variant's pattern over [*rows, 257]; `names` are its tensors'."""

    function: Callable[..., Any]
    names: tuple[str, ...]
    tensors: tuple[Tensor, ...]


def call_of(
    name: str, rows: tuple[int, int], dtype: torch.dtype = torch.float32, cols: int = 257
) -> RuleCall:
    """The variant `name` on the CPU; where a pattern takes halves, `cols` is one more if odd."""
    variant = VARIANTS[name]
    generator = torch.Generator().manual_seed(len(name))
    parameters = inspect.signature(variant.pattern).parameters
    names = tuple(n for n in parameters if isinstance(variant.examples.get(n), tuple))
    numbers = {n: NUMBERS[n] for n in parameters if isinstance(variant.examples.get(n), float)}

    def function(*tensors: Tensor) -> Any:
        return variant.pattern(**dict(zip(names, tensors, strict=True)), **numbers)

    tensors = (
        _drawn(variant, n, rows, cols, generator).to(_dtype(variant, n, dtype)) for n in names
    )
    return RuleCall(function, names, tuple(tensors))


def _dtype(variant: Variant, name: str, dtype: torch.dtype) -> torch.dtype:
    if name in variant.indices:
        return torch.int64
    return torch.bool if name in variant.masks else dtype


def _drawn(
    variant: Variant, name: str, rows: tuple[int, int], cols: int, generator: torch.Generator
) -> Tensor:
    """A tensor of [*rows, cols] for the example [4, 8], and likewise for what goes with it; an even
    number of columns where they are halved or grouped. 16 is a table's length, or all rows where
    each has an index, [16, 1], of its own.
    """
    examples = [e for e in variant.examples.values() if isinstance(e, tuple)]
    even = any(e[-1:] == (4,) for e in examples) or "group" in variant.name
    whole = cols + cols % 2 if even else cols
    one_a_row = any(variant.examples.get(index) == (16, 1) for index in variant.indices)
    sizes = {4: rows[0], 8: whole, 16: rows[0] * rows[1] if one_a_row else 7, 1: 1}
    example = variant.examples[name]
    assert isinstance(example, tuple)
    if name in variant.indices:
        shape = (sizes[16], 1) if one_a_row else rows
        return torch.randint(0, whole if one_a_row else sizes[16], shape, generator=generator)
    if len(example) == 2 and example[0] == 4:
        shape = (*rows, whole * example[1] // 8)
    else:
        shape = tuple(sizes[n] for n in example)
    drawn = 2 * torch.randn(shape, generator=generator)
    return drawn > 0 if name in variant.masks else drawn
