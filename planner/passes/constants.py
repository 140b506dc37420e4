"""Adds a constant tensor to an exported program, with its placeholder and signature entry."""

from __future__ import annotations

import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument


def add_constant(program: ExportedProgram, name: str, value: torch.Tensor) -> fx.Node:
    """A new placeholder `name` that holds `value`; it stands before the first user input."""
    signature = program.graph_signature
    position = next(
        (i for i, spec in enumerate(signature.input_specs) if spec.kind is InputKind.USER_INPUT),
        len(signature.input_specs),
    )
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    anchor = (
        placeholders[position] if position < len(placeholders) else _first_operator(program.graph)
    )
    with program.graph.inserting_before(anchor):
        node: fx.Node = program.graph.placeholder(name)
    node.meta["val"] = _fake_mode(placeholders).from_tensor(value, static_shapes=True)
    spec = InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), node.name, None)
    signature.input_specs.insert(position, spec)
    program.constants[node.name] = value
    return node


def _first_operator(graph: fx.Graph) -> fx.Node:
    node: fx.Node
    for node in graph.nodes:
        if node.op != "placeholder":
            break
    return node


def _fake_mode(placeholders: list[fx.Node]) -> FakeTensorMode:
    for node in placeholders:
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        if isinstance(mode, FakeTensorMode):
            return mode
    return FakeTensorMode()
