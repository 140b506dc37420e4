"""What the leaves of a call must be for a program with open sizes: worked out once for each set of
sizes, then looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from planner.fusion.expected import Expected, describe
from planner.graph.open_sizes import OpenInput, OpenSizes, Sizes, evaluated

_MOST = 1024
"""Sets of sizes that are remembered."""


class OpenForms:
    """`captured` are the forms of the example's leaves, in the order of `open_sizes.inputs`."""

    def __init__(self, open_sizes: OpenSizes, captured: Sequence[Any]) -> None:
        self._open, self._captured = open_sizes, captured
        self._known: dict[Any, Sequence[Any] | str] = {}

    def at(self, leaves: Sequence[Any]) -> Sequence[Any] | str:
        """The forms that leaves of these sizes must have; a text names the dimension that the
        program was not captured for.
        """
        key = tuple([_key(leaf) for leaf in leaves])
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            found = self._known[key] = self._forms(leaves)
        return found

    def _forms(self, leaves: Sequence[Any]) -> Sequence[Any] | str:
        for item, leaf in zip(self._open.inputs, leaves, strict=True):
            if item is not None and _rank(item, leaf) != len(item.shape):
                kind = "a whole number" if item.is_number else f"of {len(item.shape)} dimensions"
                return f"input '{item.name}' is {describe(leaf)}, captured was one {kind}"
        sizes = self._open.sizes_of(leaves)
        if isinstance(sizes, str):
            return sizes
        pairs = zip(self._open.inputs, self._captured, strict=True)
        return [form if item is None else _form(item, form, sizes) for item, form in pairs]


def _key(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.shape
    return leaf if type(leaf) is int else type(leaf)


def _rank(item: OpenInput, leaf: Any) -> int | None:
    if item.is_number:
        return 1 if type(leaf) is int else None
    return leaf.dim() if isinstance(leaf, Tensor) else None


def _form(item: OpenInput, captured: Any, sizes: Sizes) -> Any:
    shape = _numbers(item.shape, sizes)
    if item.is_number:
        return shape[0]
    assert isinstance(captured, Expected)
    stride = _numbers(item.stride, sizes)
    if item.contiguous:
        stride = torch.empty(shape, device="meta").stride()
    return replace(captured, shape=torch.Size(shape), stride=stride)


def _numbers(sizes: Sequence[Any], at: Sizes) -> tuple[int, ...]:
    found = tuple(evaluated(size, at) for size in sizes)
    return tuple(size for size in found if size is not None)
