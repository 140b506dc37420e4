"""Breaks emitted text into lines of at most 100 characters, the way a formatter would."""

from __future__ import annotations

from collections.abc import Sequence

_WIDTH = 100


def bracketed(head: str, items: Sequence[str], tail: str) -> list[str]:
    """`head item, item tail` on one line if it fits, else the items indented below `head`."""
    whole = f"{head}{', '.join(items)}{tail}"
    if len(whole) <= _WIDTH:
        return [whole]
    indent = " " * (len(head) - len(head.lstrip()))
    together = f"{indent}    {', '.join(items)}"
    if len(together) <= _WIDTH:
        return [head, together, f"{indent}{tail}"]
    return [head, *(f"{indent}    {item}," for item in items), f"{indent}{tail}"]


def assigned(name: str, value: str, indent: str = "") -> list[str]:
    """`name = value`, with the value in parentheses on its own line where it would be too long."""
    whole = f"{indent}{name} = {value}"
    if len(whole) <= _WIDTH - 4:
        return [whole]
    return [f"{indent}{name} = (", f"{indent}    {value}", f"{indent})"]
