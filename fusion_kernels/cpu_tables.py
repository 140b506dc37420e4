"""Tables that a compiled region looks up on CPU: read where they lie, whatever their length and
strides.

No region knows how long its tables are or how they lie beyond its own dimensions, and copying one
costs more than looking it up. Length and strides are therefore symbols of the compiled program;
strides of 1 alone are fixed, for loops over neighbours.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

from fusion_kernels.ir import Input, Region

_SHORTEST = 11


def example_tables(inputs: Sequence[Input]) -> dict[str, torch.Tensor]:
    """For each table among the inputs by name a tensor of its own shape whose values do not
    matter, positions last. Its strides are those of no contiguous tensor, less the fixed ones, and
    no length or stride is equal to another size or stride: Inductor would take the two for one.
    """
    taken = {size for item in inputs for size in item.shape}
    return {item.name: _example(item, taken) for item in inputs if item.table}


def fake_table(
    example: torch.Tensor, is_open: Sequence[bool], mode: FakeTensorMode
) -> torch.Tensor:
    """The same as a fake tensor: open are its length, all strides but 1, and the dimensions that
    `is_open` says.
    """
    free, fixed, known = DimDynamic.DYNAMIC, DimDynamic.STATIC, DimDynamic.INFER_STRIDE
    context: Any = StatelessSymbolicContext(
        dynamic_sizes=[*(DimDynamic.DUCK if n else fixed for n in is_open), free],
        dynamic_strides=[known if step == 1 else free for step in example.stride()],
    )
    return mode.from_tensor(example, symbolic_context=context)


def tables_fit(region: Region) -> Callable[[Sequence[torch.Tensor]], bool] | None:
    """Whether the region's inputs may go to its compiled form as far as tables are concerned: each
    has positions, and strides of 1 where the capture had them. None without tables.
    """
    tables = [(n, _fixed(item)) for n, item in enumerate(region.inputs) if item.table]
    if not tables:
        return None

    def fits(tensors: Sequence[torch.Tensor]) -> bool:
        for n, fixed in tables:
            table = tensors[n]
            if not table.numel() or any(table.stride(d) != 1 for d in fixed):
                return False
        return True

    return fits


def _example(item: Input, taken: set[int]) -> torch.Tensor:
    """Adds the numbers that it makes up to those that are `taken`."""
    fixed, first = _fixed(item), len(item.shape) - item.rank
    sizes = (*item.shape[first:], _next(_SHORTEST, taken))
    strides, reach = [0] * len(sizes), 1
    for d in fixed:
        strides[d], reach = 1, sizes[d]
    for d in reversed(range(len(sizes))):
        if d not in fixed:
            strides[d] = _next(reach + 1, taken)
            reach = strides[d] * sizes[d]
    storage = torch.ones(reach + 1, dtype=getattr(torch, item.dtype))
    return storage.as_strided(sizes, strides)


def _next(least: int, taken: set[int]) -> int:
    """The first number from `least` on that is not taken; it is taken afterwards."""
    found = next(n for n in itertools.count(least) if n not in taken)
    taken.add(found)
    return found


def _fixed(item: Input) -> tuple[int, ...]:
    """The table's own dimensions along which neighbours lie side by side; one at most."""
    first = len(item.shape) - item.rank
    own = zip(item.shape[first:], item.stride[first:], strict=True)
    return tuple(d for d, (size, step) in enumerate(own) if size > 1 and step == 1)[:1]
