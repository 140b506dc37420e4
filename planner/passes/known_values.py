"""What is known of a value without running the model: constants, and what the graph computes from
nothing.

Nothing that depends on an input, a parameter or a buffer counts: those can change after the
capture. Random operators do not count either.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

_RANDOM = torch.Tag.nondeterministic_seeded


def constant_nodes(graph: fx.Graph) -> dict[fx.Node, None]:
    """The operators whose results depend on nothing, in graph order. Their shapes are fixed."""
    constant: dict[fx.Node, None] = {}
    for node in graph.nodes:
        if (
            node.op == "call_function"
            and isinstance(node.target, torch._ops.OpOverload)
            and not node.target._schema.is_mutable
            and _RANDOM not in node.target.tags
            and all(source in constant for source in node.all_input_nodes)
            and isinstance(node.meta.get("val"), Tensor)
            and all(isinstance(n, int) for n in node.meta["val"].shape)
        ):
            constant[node] = None
    return constant


def evaluate(node: fx.Node) -> Tensor:
    """The value of a constant node."""
    values: dict[fx.Node, Any] = {}

    def run(current: fx.Node) -> Any:
        if current not in values:
            args, kwargs = fx.node.map_arg((current.args, current.kwargs), run)
            assert callable(current.target)
            values[current] = current.target(*args, **kwargs)
        return values[current]

    with torch.no_grad():
        value: Tensor = run(node)
    return value


def stored_constants(program: ExportedProgram) -> dict[str, Tensor]:
    """The tensors that the program holds beside weights, by the name of their placeholder."""
    lifted = program.graph_signature.inputs_to_lifted_tensor_constants
    return {
        name: program.constants[target]
        for name, target in lifted.items()
        if isinstance(program.constants.get(target), Tensor)
    }
