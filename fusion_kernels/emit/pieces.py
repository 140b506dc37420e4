"""Concatenations as choices by index, which is what a kernel makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fusion_kernels.ir import Operand, Region, Statement


def with_choices(region: Region, index_of: Callable[[int], str]) -> Region:
    """The same region with `where(index < end, a, b)` for each `cat`; `index_of` names the index
    along a dimension.
    """
    body: list[Statement] = []
    for item in region.body:
        body += _choices(item, index_of) if item.op == "cat" else [item]
    return replace(region, body=tuple(body))


def _choices(item: Statement, index_of: Callable[[int], str]) -> list[Statement]:
    """From the last piece to the first: each stands before its end, what follows elsewhere."""
    dim, _, *rest = item.args
    assert isinstance(dim, int)
    pieces = list(zip(rest[::2], rest[1::2], strict=True))
    made: list[Statement] = []
    chosen: Operand = pieces[-1][0]
    for number in range(len(pieces) - 2, -1, -1):
        value, end = pieces[number]
        before, name = f"{item.name}_before_{end}", f"{item.name}_from_{number}"
        args = (index_of(dim), end)
        made.append(Statement(before, "lt", args, "bool", item.origin))
        choice = (before, value, chosen)
        name = name if number else item.name
        made.append(Statement(name, "where", choice, item.dtype, item.origin))
        chosen = name
    return made
