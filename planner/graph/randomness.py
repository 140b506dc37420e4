"""Which calls of a graph advance torch's random state, so that their order must stay."""

from __future__ import annotations

import torch
from torch import fx

_RANDOM = torch.Tag.nondeterministic_seeded


def draws_numbers(node: fx.Node) -> bool:
    """Whether the call draws random numbers. Dropout out of training draws none, nor do attention
    and recurrent layers without dropout.
    """
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or _RANDOM not in target.tags:
        return False
    for position, argument in enumerate(target._schema.arguments):
        value = node.kwargs.get(argument.name, argument.default_value)
        if position < len(node.args):
            value = node.args[position]
        if argument.name in ("train", "training") and value is False:
            return False
        if argument.name in ("dropout", "dropout_p") and value == 0:
            return False
    return True


def drawing_nodes(graph: fx.Graph) -> list[fx.Node]:
    """The calls that draw random numbers, in graph order."""
    return [node for node in graph.nodes if draws_numbers(node)]
