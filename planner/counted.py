"""A number with its noun, for sentences that may be about one thing."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 place`, `2 places`, `0 places`; `plural` where it is not the noun with an s."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
