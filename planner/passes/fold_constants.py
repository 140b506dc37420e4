"""Computes once what depends on no input, and stores it as a constant of the program."""

from __future__ import annotations

import torch
from torch import fx
from torch.export import ExportedProgram

from planner.passes.aliasing import reaches_output
from planner.passes.constants import add_constant
from planner.passes.known_values import constant_nodes, evaluate

aten = torch.ops.aten

# Folding may not turn a few bytes of arithmetic into a large stored tensor.
_LARGEST_FOLD_BYTES = 1 << 20


def fold_constants(program: ExportedProgram) -> tuple[str, ...]:
    """Replace each largest subgraph that depends on no input by the tensor it computes.

    What reaches an output is left to be computed: the caller may write into it, and would write
    into the next call's constant.
    """
    constant = constant_nodes(program.graph)
    largest = {
        _stored_part(node): None
        for node in constant
        if any(user not in constant for user in node.users)
    }
    folded = [
        node for node in largest if _bytes(node) <= _LARGEST_FOLD_BYTES and not reaches_output(node)
    ]
    values = [evaluate(node) for node in folded]
    for node, value in zip(folded, values, strict=True):
        node.replace_all_uses_with(add_constant(program, f"folded_{node.name}", value))
    return (f"{len(folded)} constant subgraphs folded",) if folded else ()


def _stored_part(node: fx.Node) -> fx.Node:
    """What to store of a constant: an expansion costs nothing in the graph and much when
    stored.
    """
    while node.target is aten.expand.default and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _bytes(node: fx.Node) -> int:
    value = node.meta["val"]
    return int(value.numel()) * int(value.element_size())
