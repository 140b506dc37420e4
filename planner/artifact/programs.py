"""Exported programs as they go into the file, the weights with one of them only. Touches torch's
archive writer and reader, which are private to it.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from fusion_kernels.library import is_kernel, operator_of, reuse_of
from planner.artifact.errors import NotSaved
from planner.artifact.manifest import Weight
from planner.artifact.weights import tensor_at
from planner.graph.export import copied_graph

MAIN, UNFUSED = "model", "unfused"
"""The programs' names in the file; torch.export.load gives the first."""


def with_weights(
    program: ExportedProgram, twin: nn.Module, weights: tuple[Weight, ...]
) -> ExportedProgram:
    """The program with the module's weights as they are now."""
    moved: dict[int, Tensor] = {}
    values = {w.name: _dense(tensor_at(twin, w.name), moved) for w in weights}
    state = {w.name: values[w.name] for w in weights if w.persistent}
    others = {w.name: values[w.name] for w in weights if not w.persistent}
    return _exported(program, state, constants_of(program) | others)


def without_weights(
    unfused: ExportedProgram, main: ExportedProgram
) -> tuple[ExportedProgram, tuple[str, ...]]:
    """The second program with empty tensors for what the first one holds too, and the names of
    the constants among them.
    """
    own, theirs = constants_of(unfused), constants_of(main)
    shared = tuple(name for name, value in own.items() if theirs.get(name) is value)
    state: dict[str, Tensor] = {}
    constants: dict[str, Any] = {
        name: torch.empty(0) if name in shared else own[name] for name in own
    }
    for spec in unfused.graph_signature.input_specs:
        if spec.kind is InputKind.PARAMETER:
            state[str(spec.target)] = nn.Parameter(torch.empty(0), requires_grad=False)
        elif spec.kind is InputKind.BUFFER:
            (state if spec.persistent else constants)[str(spec.target)] = torch.empty(0)
    return _exported(unfused, state, constants), shared


def _exported(
    program: ExportedProgram, state: dict[str, Tensor], constants: dict[str, Any]
) -> ExportedProgram:
    """The program over these tensors: without the example inputs, which are the user's data,
    without the source lines, which are this machine's, and functional, as torch.export demands.
    """
    module = copied_graph(program)
    for node in module.graph.nodes:
        node.meta.pop("stack_trace", None)
        found = reuse_of(node.target)
        if found is not None:
            node.target = found[0].overload
    return ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=program.graph_signature,
        state_dict=state,
        range_constraints=dict(program.range_constraints),
        module_call_graph=program.module_call_graph[:1],
        example_inputs=None,
        constants=constants,
    )


def constants_of(program: ExportedProgram) -> dict[str, Any]:
    """The constants that the graph reads, by name."""
    specs = program.graph_signature.input_specs
    names = [str(s.target) for s in specs if s.kind is InputKind.CONSTANT_TENSOR]
    return {name: program.constants[name] for name in names}


def _dense(tensor: Tensor, moved: dict[int, Tensor]) -> Tensor:
    """Torch brings another device's storage to the CPU tensor by tensor, which closes gaps that
    its record of the strides still has.
    """
    if tensor.device.type == "cpu" or tensor.is_contiguous():
        return tensor
    if id(tensor) not in moved:
        value = tensor.detach().clone()
        moved[id(tensor)] = (
            nn.Parameter(value, requires_grad=False) if isinstance(tensor, nn.Parameter) else value
        )
    return moved[id(tensor)]


def write(path: Path, programs: dict[str, ExportedProgram], files: dict[str, str]) -> None:
    """A .pt2 file of these programs and extra files.

    Raises `NotSaved` for a program that torch cannot write, `OSError`.
    """
    from torch.export.pt2_archive._package import package_pt2

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about weights that are views of one another
            with path.open("w+b") as stream:  # a path's own name would go into the file
                package_pt2(stream, exported_programs=programs, extra_files=files)
    except OSError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines()
        raise NotSaved(
            f"torch.export cannot write this program: {type(error).__name__}: "
            f"{lines[0] if lines else ''}"
        ) from error


def read(stream: BinaryIO) -> dict[str, ExportedProgram]:
    """The programs of a file, by name; the operators they call must be there."""
    from torch.export.pt2_archive._package import load_pt2

    stream.seek(0)
    programs: dict[str, ExportedProgram] = load_pt2(stream).exported_programs
    return programs


def overwrite(program: ExportedProgram, reuse: tuple[int | None, ...]) -> None:
    """Let each call of a kernel overwrite the input that stands in `reuse` in its place."""
    calls = [node for node in program.graph.nodes if is_kernel(node.target)]
    for node, index in zip(calls, reuse, strict=True):
        if index is not None:
            operator = operator_of(node.target)
            assert operator is not None
            node.target = operator.reusing(index)
    program.graph_module.recompile()


def give_example(program: ExportedProgram) -> None:
    """Give the program example inputs without values, of the captured form."""
    specs = program.graph_signature.input_specs
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    leaves: list[Any] = []
    for spec, node in zip(specs, placeholders, strict=True):
        if spec.kind is InputKind.USER_INPUT:
            value = node.meta.get("val")
            leaves.append(value if isinstance(value, Tensor) else spec.arg.value)
    assert program.call_spec.in_spec is not None
    program.example_inputs = pytree.tree_unflatten(leaves, program.call_spec.in_spec)
