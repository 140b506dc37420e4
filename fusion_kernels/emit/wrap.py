"""Breaks emitted text into lines of at most 100 characters, exactly as ruff's formatter would."""

from __future__ import annotations

from collections.abc import Sequence

from fusion_kernels.emit.expressions import Text

WIDTH = 100


def bracketed(head: str, items: Sequence[str], tail: str) -> list[str]:
    """`head item, item tail` on one line if it fits, else the items indented below `head`."""
    whole = f"{head}{', '.join(items)}{tail}"
    if len(whole) <= WIDTH:
        return [whole]
    indent = " " * (len(head) - len(head.lstrip()))
    together = f"{indent}    {', '.join(items)}"
    if len(together) <= WIDTH:
        return [head, together, f"{indent}{tail}"]
    return [head, *(f"{indent}    {item}," for item in items), f"{indent}{tail}"]


def assigned(name: str, value: Text, indent: str = "    ") -> list[str]:
    """`name = value` at `indent`: a call breaks within its parentheses, a sum before its signs."""
    if value.head:
        return bracketed(f"{indent}{name} = {value.head}(", value.items, ")")
    return summed(name, [value.text], indent)


def summed(name: str, terms: Sequence[str], indent: str = "    ") -> list[str]:
    """`name = term + term`; in parentheses, and one term a line, where it is too long."""
    whole = f"{indent}{name} = {' + '.join(terms)}"
    if len(whole) <= WIDTH:
        return [whole]
    inner = f"{indent}    "
    together = inner + " + ".join(terms)
    lines = [together] if len(together) <= WIDTH else [inner + f"\n{inner}+ ".join(terms)]
    return [f"{indent}{name} = (", *"\n".join(lines).split("\n"), f"{indent})"]


def fits(name: str, value: Text, indent: str = "    ") -> bool:
    """Whether `name = value` needs no break."""
    return len(f"{indent}{name} = {value.text}") <= WIDTH
