"""Keeps a bound program's folded and packed weights equal to what they are made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from planner.passes.derived import Derived


class Kept:
    """One derived constant of one module.

    A change is seen by the weight's version, which every in-place operation counts
    (load_state_dict, optimisers, also those on the user's own module: it shares the counter), and
    by its storage. What is written through `weight.data` is not counted by torch and not seen.
    """

    def __init__(self, derived: Derived, sources: Sequence[Any]) -> None:
        self._derived = derived
        self._sources = sources
        self._seen: list[tuple[Tensor, int]] = []

    def renewed(self) -> Tensor | None:
        """The value, when a weight has changed since the last call; else None."""
        weights: list[Tensor] = [slot.get() for slot in self._sources]
        if self._seen and all(map(_unchanged, weights, self._seen)):
            return None
        with torch.inference_mode(False), torch.no_grad():
            value = self._derived.compute(*(weight.detach() for weight in weights))
            # Held, so that no other tensor can come to lie at these addresses.
            self._seen = [(weight.detach(), _version(weight)) for weight in weights]
        return value


def _unchanged(weight: Tensor, seen: tuple[Tensor, int]) -> bool:
    held, version = seen
    return weight.data_ptr() == held.data_ptr() and _version(weight) == version >= 0


def _version(weight: Tensor) -> int:
    """-1 for a tensor made in inference mode, which counts no versions."""
    return -1 if weight.is_inference() else weight._version
