"""Keeps a bound program's folded and packed weights equal to what they are made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

import torch
from torch import Tensor

from planner.passes.derived import Derived

_version = attrgetter("_version")


class Kept:
    """The derived constants of one module, by their position among the program's constants.

    A change is seen by the weight's version, which every in-place operation counts
    (load_state_dict, optimisers, also those on the user's own module: it shares the counter), and
    by its storage. Weights made in inference mode count nothing: of those, values are made at every
    call. What is written through `weight.data` is not counted by torch and not seen.
    """

    def __init__(self, derived: Mapping[int, Derived], names: Sequence[str]) -> None:
        """`names` are those of the weights that `renewed` will be given, in that order."""
        self._derived = derived
        place = {name: position for position, name in enumerate(names)}
        self._sources = {at: [place[name] for name in item.sources] for at, item in derived.items()}
        self._read = sorted({place for places in self._sources.values() for place in places})
        self._state: tuple[list[int], list[int]] | None = None
        self._held: list[Tensor] = []

    def renewed(self, weights: Sequence[Tensor]) -> dict[int, Tensor]:
        """All values anew when a weight has changed since the last call; nothing otherwise.

        Runs at every call: two attributes a weight that is read.
        """
        if not self._read:
            return {}
        read = [weights[place] for place in self._read]
        state = _state(read)
        if state is not None and state == self._state:
            return {}
        with torch.inference_mode(False), torch.no_grad():
            values = {
                at: item.compute(*(weights[place].detach() for place in self._sources[at]))
                for at, item in self._derived.items()
            }
            # Held, so that no other tensor can come to lie at these addresses.
            self._held = [weight.detach() for weight in read]
        counted = not any(map(Tensor.is_inference, read))
        self._state = state if counted else None
        return values


def _state(weights: Sequence[Tensor]) -> tuple[list[int], list[int]] | None:
    """Addresses and versions; None where torch has none, as for some made in inference mode."""
    try:
        return list(map(Tensor.data_ptr, weights)), list(map(_version, weights))
    except RuntimeError:
        return None
