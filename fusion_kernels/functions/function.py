"""What a device function is, and Horner's scheme as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Function:
    """`text` is the @triton.jit function `name`; it may call those in `needs`, its like.

    `evaluate` is the same by torch, for tensors of any float dtype (or any integer dtype).
    """

    name: str
    evaluate: Callable[..., Any]
    text: str
    needs: tuple[str, ...] = ()


def horner(name: str, variable: str, coefficients: Sequence[float], indent: str = "    ") -> str:
    """Lines that set `name` to the polynomial, coefficients from the constant term up."""
    lines = [f"{indent}{name} = {coefficients[-1]!r}"]
    lines += [
        f"{indent}{name} = {name} * {variable} {'-' if c < 0 else '+'} {abs(c)!r}"
        for c in reversed(coefficients[:-1])
    ]
    return "\n".join(lines)
