"""Makes one linear on a packed weight of several on one input: query, key, value; gate and up."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from planner.passes.aliasing import reaches_output
from planner.passes.derived import Derived, add_derived, fixed_weights
from planner.passes.insert import insert_call
from planner.passes.restride import restrided

aten = torch.ops.aten


def merge_linears(program: ExportedProgram) -> tuple[str, ...]:
    """Replace linears that read the same input by one, whose result they are views of.

    All have a bias or none has, and weights are parameters or buffers that the forward does not
    write. The packed weight is a copy. A linear whose result can reach an output stays: it would
    share storage with the others. So do those whose readers do not take the strides of such a
    view, or would give an output others.
    """
    weights = fixed_weights(program)
    groups: dict[object, list[fx.Node]] = defaultdict(list)
    for node in program.graph.nodes:
        if node.target is aten.linear.default and _can_merge(node, weights):
            value = node.args[1].meta["val"]
            groups[node.args[0], len(node.args), value.dtype, value.device].append(node)
    several = [group for group in groups.values() if len(group) > 1]
    notes = [_merge(program, group, weights) for group in several]
    return tuple(f"{count} x {note}" for note, count in Counter(notes).items())


def packed(*tensors: Tensor) -> Tensor:
    """The rows of all, one after another: [sum of N, K] of [N, K] each."""
    return torch.cat(tensors)


def _can_merge(node: fx.Node, weights: Mapping[str, str]) -> bool:
    given = node.args[1:]
    own = node.meta["val"]
    return (
        bool(node.users)
        and not node.kwargs
        and all(isinstance(arg, fx.Node) and arg.name in weights for arg in given)
        and node.args[1].meta["val"].ndim == 2  # type: ignore[union-attr]
        and all(isinstance(size, int) for size in own.shape)
        and own.is_contiguous()
        and not reaches_output(node)
    )


def _merge(program: ExportedProgram, group: Sequence[fx.Node], weights: Mapping[str, str]) -> str:
    """What was done with linears on one input, in words."""
    values = restrided(program.graph, _as_parts(group))
    if isinstance(values, str):
        return f"{len(group)} linears left apart: {values}"
    for node, value in values.items():
        node.meta["val"] = value
    first = group[0]
    columns = list(zip(*(node.args[1:] for node in group), strict=True))
    packs = []
    for role, column in zip(("weight", "bias"), columns, strict=False):
        sources = tuple(weights[argument.name] for argument in column)
        packs.append(add_derived(program, f"{first.name}_{role}", Derived(sources, packed)))
    whole = insert_call(program.graph, first, aten.linear.default, (first.args[0], *packs))
    ends = list(accumulate(node.meta["val"].shape[-1] for node in group))
    slices = [(whole, -1, start, end) for start, end in zip([0, *ends], ends, strict=False)]
    parts = [insert_call(program.graph, first, aten.slice.Tensor, given) for given in slices]
    for node, part in zip(group, parts, strict=True):
        part.meta = {**node.meta, "val": part.meta["val"]}
        node.replace_all_uses_with(part)
        program.graph.erase_node(node)
    widths = "+".join(str(node.meta["val"].shape[-1]) for node in group)
    return f"linears of {widths} columns merged"


def _as_parts(group: Sequence[fx.Node]) -> dict[fx.Node, Tensor]:
    """The group's (fake) results as views of one."""
    values = [node.meta["val"] for node in group]
    widths = [value.shape[-1] for value in values]
    whole = values[0].new_empty((*values[0].shape[:-1], sum(widths)))
    return dict(zip(group, whole.split(widths, -1), strict=True))
