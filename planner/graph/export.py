"""Whole-program capture: torch.export, made functional by torch itself, compared with eager."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from planner.graph.autocast import autocast_around, note_autocast, without_autocast
from planner.graph.compare import require_equal
from planner.graph.containers import register_containers
from planner.graph.errors import CaptureFailed, NoValues, TrainingMode, WrongInputs
from planner.graph.explain import export_failure, first_line
from planner.graph.open_ends import settle_ends
from planner.graph.open_example import open_example
from planner.graph.quiet import quiet_export
from planner.graph.source import user_frame
from planner.graph.traces import user_traces
from planner.graph.twin import clone_inputs, separate_inputs, twin_of

_Call = tuple[tuple[Any, ...], dict[str, Any]]

_DROPOUTS = {
    torch.ops.aten.dropout.default,
    torch.ops.aten.alpha_dropout.default,
    torch.ops.aten.feature_dropout.default,
    torch.ops.aten.feature_alpha_dropout.default,
}
_RANKS = {InputKind.PARAMETER: 0, InputKind.BUFFER: 0, InputKind.CONSTANT_TENSOR: 1}


@dataclass(frozen=True, slots=True)
class Captured:
    """One exported program, functional, with the twin of the user's module that it was taken from.

    `args` and `kwargs` are the example inputs as given; with open sizes, what is there once along
    one is there twice. `notes` say from which size on the program is eager's equal.
    """

    program: ExportedProgram
    module: nn.Module
    twin: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    notes: tuple[str, ...] = ()


def capture(
    module: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> Captured:
    """Export `module` for the given inputs as one functional ATen program.

    `dynamic_shapes` is what torch.export takes. An example of 1 along an open dimension is made 2
    for the capture; whether the program holds for 0 and 1 is found by comparing it with eager
    there, and stands in its range constraints. Composite operators (linear, gelu, layer_norm,
    scaled_dot_product_attention) stay whole. The module, its mode, its buffers, the inputs and the
    random state are left as they are; random operators draw the same numbers in eager and in the
    program when they are compared. Casts that autocast makes, inside the forward or around this
    call, are operators of the program (`autocast_of` tells which autocast was on).

    Raises `TrainingMode`, `NoValues` (something lies on the meta device), `WrongInputs` (forward
    refuses the inputs), `CaptureFailed` (with the user's line) or `CaptureDiffers` (the export
    computes something else than eager).
    """
    if module.training:
        raise TrainingMode(
            f"{type(module).__name__} is in training mode; fuseplan plans inference. "
            "Call model.eval() first."
        )
    call: _Call = (tuple(args), dict(kwargs or {}))
    register_containers(call)
    _require_values(module, call)
    twin = twin_of(module)
    example = None
    if dynamic_shapes is not None:
        example = open_example(module, *call, dynamic_shapes)
        call, dynamic_shapes = (example.args, example.kwargs), example.dynamic_shapes
    with torch.no_grad():
        expected = _run_eager(module, call)
        register_containers(expected)
        program = _export(twin, call, dynamic_shapes)
        _compare(program, call, expected)
        notes = () if example is None else settle_ends(program, twin, example)
    return Captured(program, module, twin, *call, notes)


def second_program(program: ExportedProgram) -> ExportedProgram:
    """A program of its own graph over the same weights and constants: passes that transform it
    leave the first as it is.
    """
    module = copied_graph(program)
    return ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=copy.deepcopy(program.graph_signature),
        state_dict=program.state_dict,
        range_constraints=dict(program.range_constraints),
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=dict(program.constants),  # a pass may add some
    )


def copied_graph(program: ExportedProgram) -> fx.GraphModule:
    """The program's graph in a module of its own, every node with its name."""
    module: fx.GraphModule = copy.deepcopy(program.graph_module)
    for node, like in zip(module.graph.nodes, program.graph.nodes, strict=True):
        node.name = like.name  # the copy renames a placeholder called like a builtin
    return module


def _require_values(module: nn.Module, call: _Call) -> None:
    named = [*module.named_parameters(), *module.named_buffers()]
    named += [(f"input {n}", leaf) for n, leaf in enumerate(pytree.tree_leaves(call))]
    for name, tensor in named:
        if isinstance(tensor, Tensor) and tensor.is_meta:
            raise NoValues(
                f"'{name}' lies on the meta device and holds no values; a capture is compared "
                "with eager. Give it data first: model.to_empty(device='cpu'), then load or "
                "initialise the weights."
            )


def _run_eager(module: nn.Module, call: _Call) -> Any:
    twin = twin_of(module)
    args, kwargs = clone_inputs(call)
    leaves, structure = pytree.tree_flatten((args, kwargs))
    try:
        with torch.random.fork_rng():
            result = twin(*args, **kwargs)
    except WrongInputs:
        raise
    except Exception as error:
        frame = user_frame(error.__traceback__)
        raise WrongInputs(
            f"{type(module).__name__}.forward refuses these inputs: {first_line(error)}"
            + (f" (at {frame})" if frame else "")
            + ". Check names, shapes and dtypes of the inputs."
        ) from error
    after, other = pytree.tree_flatten((args, kwargs))
    if structure != other or any(a is not b for a, b in zip(leaves, after, strict=True)):
        raise CaptureFailed(
            f"{type(module).__name__}.forward changes a list, a dict or an object among its "
            "inputs, and a captured program returns values only: whoever passed it would wait for "
            "the change. Return the new values instead, or pass the tensors by themselves."
        )
    return result


def _run(module: nn.Module, call: _Call) -> Any:
    """A forward on copies of the inputs; the random state is as before, whatever it draws."""
    args, kwargs = clone_inputs(call)
    with torch.random.fork_rng():
        return module(*args, **kwargs)


def _export(twin: nn.Module, call: _Call, dynamic_shapes: Any) -> ExportedProgram:
    args, kwargs = separate_inputs(call)
    try:
        with quiet_export(), torch.random.fork_rng():
            with user_traces():
                program: ExportedProgram = torch.export.export(
                    twin, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False
                )
            autocast = autocast_around(program, twin, call)
            functional = _decomposed(program)
            note_autocast(functional, autocast)
            return functional
    except Exception as error:
        raise CaptureFailed(export_failure(type(twin).__name__, error)) from error


def _compare(program: ExportedProgram, call: _Call, expected: Any) -> None:
    """Run the program once; the buffers it writes, which are the twin's, are put back."""
    module = program.module()
    written = set(program.graph_signature.buffers_to_mutate.values())
    saved = [(buffer, buffer.clone()) for name, buffer in module.named_buffers() if name in written]
    with without_autocast():
        result = _run(module, call)
    require_equal(result, expected)
    for buffer, value in saved:
        buffer.copy_(value)


def _decomposed(program: ExportedProgram) -> ExportedProgram:
    """`run_decompositions({})`: functional, composites whole, without idle dropouts.

    The outputs are a plain tuple meanwhile: rebuilding an output class can make tensors
    (transformers' caches do), which the retracing would take for constants of the program and
    then miss.
    """
    _drop_idle_dropouts(program)
    signature = program.module_call_graph[0].signature
    assert signature is not None
    structure = signature.out_spec
    flat = tuple(range(structure.num_leaves))
    signature.out_spec = pytree.tree_structure(flat)
    functional: ExportedProgram = program.run_decompositions({})
    restored = functional.module_call_graph[0].signature
    assert restored is not None
    restored.out_spec = structure
    _order_inputs(functional)
    return functional


def _drop_idle_dropouts(program: ExportedProgram) -> None:
    """Outside of training a dropout returns its operand, the same object; torch decomposes it into
    a copy.
    """
    for node in list(program.graph.nodes):
        if node.target in _DROPOUTS and not node.args[2]:
            source = node.args[0]
            node.replace_all_uses_with(source)
            program.graph_signature.replace_all_uses(node.name, source.name)
            program.graph.erase_node(node)
    program.graph_module.recompile()


def _order_inputs(program: ExportedProgram) -> None:
    """Weights first, then constants, then the call's inputs. torch puts buffers that no state_dict
    holds behind the constants.
    """
    specs = program.graph_signature.input_specs
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    order = sorted(range(len(specs)), key=lambda n: _RANKS.get(specs[n].kind, len(_RANKS)))
    first = next(node for node in program.graph.nodes if node.op != "placeholder")
    for position in order:
        first.prepend(placeholders[position])
    specs[:] = [specs[position] for position in order]
    program.graph_module.recompile()
