"""A program with open sizes as the program of one set of sizes, node for node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from planner.graph.export import second_program
from planner.graph.open_sizes import OpenSizes, Sizes, evaluated

# Factors of the example's sizes for the second lowering: it keeps what divides them, and no two
# sizes are equal that were not the same one.
_FACTORS = (101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151, 157, 163, 167, 173, 179)


def at_sizes(program: ExportedProgram, sizes: Sizes) -> ExportedProgram:
    """A copy whose operators are called with the numbers that open sizes have in `sizes`, and
    whose (fake) values have those sizes and strides. Nodes keep their names; those that computed
    sizes are gone. What depends on a size that only the data tells stays open.
    """
    fixed = second_program(program)
    mode = FakeTensorMode()
    for node in fixed.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = _fixed(node.meta["val"], sizes, mode)
    for node in fixed.graph.nodes:
        if node.op != "output":
            node.args = fx.map_arg(node.args, _number)
            node.kwargs = fx.map_arg(node.kwargs, _number)
    for node in reversed(fixed.graph.nodes):
        if node.op == "call_function" and not node.users and type(node.meta.get("val")) is int:
            fixed.graph.erase_node(node)
    fixed.graph_module.recompile()
    return fixed


def two_sizes(program: ExportedProgram, found: OpenSizes) -> tuple[Sizes, Sizes]:
    """The open sizes of the example, and others that tell them apart from one another and from
    fixed ones.
    """
    args, kwargs = program.example_inputs or ((), {})
    own = found.sizes_of(pytree.tree_leaves((args, kwargs)))
    assert not isinstance(own, str), own
    factors = [_FACTORS[n % len(_FACTORS)] ** (1 + n // len(_FACTORS)) for n in range(len(own))]
    return own, {symbol: own[symbol] * n for symbol, n in zip(own, factors, strict=True)}


def by_name(graph: fx.Graph) -> dict[str, fx.Node]:
    """The nodes of a graph by their names."""
    return {node.name: node for node in graph.nodes}


def _number(node: fx.Node) -> Any:
    value = node.meta.get("val")
    return value if type(value) is int and node.op == "call_function" else node


def _fixed(value: Any, sizes: Sizes, mode: FakeTensorMode) -> Any:
    if isinstance(value, list | tuple):
        return type(value)([_fixed(item, sizes, mode) for item in value])
    if isinstance(value, torch.SymInt):
        found = evaluated(value, sizes)
        return value if found is None else found
    if not isinstance(value, Tensor) or not _is_open(value):
        return value
    shape, stride = (_numbers(of, sizes) for of in (value.shape, value.stride()))
    if shape is None or stride is None:
        return value
    with mode:
        return torch.empty_strided(shape, stride, dtype=value.dtype, device=value.device)


def _numbers(of: Sequence[Any], sizes: Sizes) -> list[int] | None:
    found = [evaluated(n, sizes) for n in of]
    known = [n for n in found if n is not None]
    return known if len(known) == len(found) else None


def _is_open(value: Tensor) -> bool:
    return not all(isinstance(n, int) for n in (*value.shape, *value.stride()))
