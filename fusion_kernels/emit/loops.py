"""Rows longer than one block: which statements each pass over the row computes.

Every reduction needs a pass of its own over what it reduces, unless it shares one with others that
need no later value. Values of the whole row are not kept between passes, they are computed again
from the inputs; one value a row is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fusion_kernels.ir import REDUCTIONS, Operand, Region, Statement


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass: `statements` are computed in every block, `reductions` accumulate over them, and
    `after` is computed once from the rows' values known by then.
    """

    statements: tuple[Statement, ...]
    reductions: tuple[Statement, ...]
    after: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Passes:
    """`before` is computed ahead of the first pass, `last` in the pass that stores what is as
    large as the region.
    """

    before: tuple[Statement, ...]
    reducing: tuple[Pass, ...]
    last: tuple[Statement, ...]


def passes_over(region: Region, of_row: Sequence[str]) -> Passes:
    """The passes for `region`, whose inputs in `of_row` hold one value a row.

    The region's norms must be written out, see `written_out`.
    """
    level, rows = _levels(region, of_row)
    by_name = {item.name: item for item in region.body}
    whole = [output.value for output in region.outputs if output.value not in rows]
    passes = []
    for number in range(max(level.values(), default=0)):
        reductions = tuple(
            item for item in region.body if item.op in REDUCTIONS and level[item.name] == number + 1
        )
        wanted = [item.args[0] for item in reductions]
        after = tuple(
            item
            for item in region.body
            if item.name in rows and item.op not in REDUCTIONS and level[item.name] == number + 1
        )
        passes.append(Pass(_needed(wanted, region, by_name, rows), reductions, after))
    before = tuple(item for item in region.body if item.name in rows and level[item.name] == 0)
    return Passes(before, tuple(passes), _needed(whole, region, by_name, rows))


def written_out(region: Region) -> Region:
    """The same region with each layer_norm as the reductions and products it is made of."""
    body: list[Statement] = []
    for item in region.body:
        body += _layer_norm(item) if item.op == "layer_norm" else [item]
    return replace(region, body=tuple(body))


def _levels(region: Region, of_row: Sequence[str]) -> tuple[Mapping[str, int], set[str]]:
    """For each value the passes that must be over before it is known, and those of one a row."""
    level = {item.name: 0 for item in region.inputs}
    rows = set(of_row)
    for item in region.body:
        args = item.args[:1] if item.op == "cast" else item.args
        names = [arg for arg in args if isinstance(arg, str)]
        level[item.name] = max((level.get(name, 0) for name in names), default=0)
        if item.op in REDUCTIONS:
            level[item.name] += 1
        if item.op in REDUCTIONS or rows.issuperset(names):
            rows.add(item.name)
    return level, rows


def _needed(
    wanted: Sequence[Operand],
    region: Region,
    by_name: Mapping[str, Statement],
    rows: set[str],
) -> tuple[Statement, ...]:
    """The statements of the whole row behind `wanted`, in order."""
    found: set[str] = set()
    waiting = [name for name in wanted if isinstance(name, str)]
    while waiting:
        name = waiting.pop()
        if name in by_name and name not in rows and name not in found:
            found.add(name)
            waiting += [arg for arg in by_name[name].args if isinstance(arg, str)]
    return tuple(item for item in region.body if item.name in found)


def _layer_norm(item: Statement) -> list[Statement]:
    """As one block has it: the mean twice, the second time of what the first left over."""
    x, weight, bias, eps = item.args
    made: list[Statement] = []

    def add(part: str, op: str, *args: Operand) -> str:
        name = f"{item.name}_{part}"
        made.append(Statement(name, op, args, "float32", item.origin))
        return name

    mean = add("mean", "row_mean", x)
    deviation = add("deviation", "sub", x, mean)
    centered = add("centered", "sub", deviation, add("rest", "row_mean", deviation))
    variance = add("variance", "row_mean", add("square", "mul", centered, centered))
    factor = add("factor", "rsqrt", add("padded", "add", variance, eps))
    result = add("normed", "mul", centered, factor)
    result = result if weight is None else add("scaled", "mul", result, weight)
    result = result if bias is None else add("shifted", "add", result, bias)
    return [*made[:-1], replace(made[-1], name=item.name)]
