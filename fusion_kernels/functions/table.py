"""All device functions by name, and the text of those that a kernel calls."""

from __future__ import annotations

from collections.abc import Iterable

from fusion_kernels.functions.bessel import BESSEL
from fusion_kernels.functions.elementary import ELEMENTARY
from fusion_kernels.functions.float8 import FLOAT8
from fusion_kernels.functions.function import Function
from fusion_kernels.functions.gamma import GAMMA
from fusion_kernels.functions.orthogonal import ORTHOGONAL
from fusion_kernels.functions.power import POWERS

FUNCTIONS: dict[str, Function] = {
    item.name: item for item in (*ELEMENTARY, *POWERS, *GAMMA, *BESSEL, *ORTHOGONAL, *FLOAT8)
}
FUNCTION_NAMES = tuple(FUNCTIONS)


def needed(names: Iterable[str]) -> tuple[Function, ...]:
    """The functions of these names and all that they call, a callee before its caller."""
    found: dict[str, Function] = {}

    def add(name: str) -> None:
        if name in FUNCTIONS and name not in found:
            for callee in FUNCTIONS[name].needs:
                add(callee)
            found[name] = FUNCTIONS[name]

    for name in sorted(names):
        add(name)
    return tuple(found.values())
