"""Whole-program capture: torch.export, made functional by torch itself, compared with eager."""

from __future__ import annotations

import dataclasses
import importlib
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from planner.graph.errors import CaptureDiffers, CaptureFailed, TrainingMode, WrongInputs
from planner.graph.source import user_frame
from planner.graph.twin import clone_inputs, twin_of

# How far a capture may lie from eager, norm-wise. Only the order of rounding may differ (another
# attention kernel, say); a wrong mask or a lost branch lies orders of magnitude further out.
_CAPTURE_LIMIT = {torch.float64: 1e-10, torch.float32: 1e-4}
_CAPTURE_LIMIT_LOW = 3e-2


@dataclass(frozen=True, slots=True)
class Captured:
    """One exported program, functional, with the twin of the user's module that it was taken from.

    `args` and `kwargs` are the example inputs as given.
    """

    program: ExportedProgram
    module: nn.Module
    twin: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def capture(
    module: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> Captured:
    """Export `module` for the given inputs as one functional ATen program.

    `dynamic_shapes` is what torch.export takes. Composite operators (linear, gelu, layer_norm,
    scaled_dot_product_attention) stay whole. The module, its mode, its buffers, the inputs and the
    random state are left as they are.

    Raises `TrainingMode`, `WrongInputs` (forward refuses the inputs), `CaptureFailed` (with the
    user's line) or `CaptureDiffers` (the export computes something else than eager).
    """
    if module.training:
        raise TrainingMode(
            f"{type(module).__name__} is in training mode; fuseplan plans inference. "
            "Call model.eval() first."
        )
    given = dict(kwargs or {})
    twin = twin_of(module)
    with torch.random.fork_rng(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch.export's, of its own pytree
        expected = _run_eager(module, args, given)
        _register_output_classes(expected)
        program = _export(twin, args, given, dynamic_shapes)
        _compare(program, expected, args, given)
    return Captured(program, module, twin, args, given)


def _run_eager(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return twin_of(module)(*clone_inputs(args), **clone_inputs(kwargs))
    except Exception as error:
        frame = user_frame(error.__traceback__)
        raise WrongInputs(
            f"{type(module).__name__}.forward refuses these inputs: {_first_line(error)}"
            + (f" (at {frame})" if frame else "")
            + ". Check names, shapes and dtypes of the inputs."
        ) from error


def _register_output_classes(outputs: Any) -> None:
    """Teach torch's pytree the classes a forward returns, as torch.export asks for.

    Plain dataclasses by torch's own call, transformers' caches by transformers' own.
    """
    for leaf in pytree.tree_leaves(outputs):
        if type(leaf).__name__ == "DynamicCache":
            executorch = importlib.import_module("transformers.integrations.executorch")
            executorch.register_dynamic_cache_export_support()
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            torch.export.register_dataclass(type(leaf))
            for field in dataclasses.fields(leaf):
                _register_output_classes(getattr(leaf, field.name))


def _export(
    twin: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any
) -> ExportedProgram:
    try:
        program: ExportedProgram = torch.export.export(
            twin,
            clone_inputs(args),
            clone_inputs(kwargs),
            dynamic_shapes=dynamic_shapes,
            strict=False,
        )
        functional = _decomposed(program)
    except Exception as error:
        frame = user_frame(error.__traceback__) or _frame_in_message(str(error))
        where = f" at {frame}" if frame else ""
        raise CaptureFailed(
            f"torch.export cannot take {type(twin).__name__} as one program: "
            f"{_explain(error)}{where}. Replace what depends on a tensor's value by tensor "
            "operations (torch.where, masks), or export the parts around it."
        ) from error
    return functional


def _decomposed(program: ExportedProgram) -> ExportedProgram:
    """`run_decompositions({})`: functional, composites whole.

    The outputs are a plain tuple meanwhile: rebuilding an output class can make tensors
    (transformers' caches do), which the retracing would take for constants of the program and
    then miss.
    """
    signature = program.module_call_graph[0].signature
    assert signature is not None
    structure = signature.out_spec
    flat = tuple(range(structure.num_leaves))
    signature.out_spec = pytree.tree_structure(flat)
    functional: ExportedProgram = program.run_decompositions({})
    restored = functional.module_call_graph[0].signature
    assert restored is not None
    restored.out_spec = structure
    return functional


def _explain(error: Exception) -> str:
    name = type(error).__name__
    if "DataDependent" in name:
        return "a Python branch or size depends on the value of a tensor"
    return f"{name}: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


def _frame_in_message(message: str) -> str | None:
    """The last `file, line` that the error text itself names outside of torch."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', message)
    own = [f"{file}:{line}" for file, line in frames if "/torch/" not in file]
    return own[-1] if own else None


def _compare(
    program: ExportedProgram, expected: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    actual = program.module()(*clone_inputs(args), **clone_inputs(kwargs))
    wanted, _ = pytree.tree_flatten_with_path(expected)
    got, _ = pytree.tree_flatten_with_path(actual)
    if [path for path, _ in wanted] != [path for path, _ in got]:
        raise CaptureDiffers(
            "the exported program returns another structure than eager: "
            f"{len(got)} leaves instead of {len(wanted)}."
        )
    for (path, reference), (_, value) in zip(wanted, got, strict=True):
        reason = _difference(reference, value)
        if reason:
            raise CaptureDiffers(
                f"the exported program differs from eager in output "
                f"'{pytree.keystr(path) or 'result'}': {reason}. The export is not used; "
                "please report the model, it shows a fault of the export."
            )


def _difference(reference: Any, value: Any) -> str | None:
    if not isinstance(reference, torch.Tensor):
        return None if reference == value else f"{value!r} instead of {reference!r}"
    if (reference.shape, reference.dtype) != (value.shape, value.dtype):
        return (
            f"{value.dtype}{list(value.shape)} instead of {reference.dtype}{list(reference.shape)}"
        )
    if not reference.dtype.is_floating_point:
        return None if torch.equal(reference, value) else "integer or boolean values differ"
    exact, close = reference.double(), value.double()
    if not torch.equal(exact.isnan(), close.isnan()):
        return "NaN stands in other places"
    limit = _CAPTURE_LIMIT.get(reference.dtype, _CAPTURE_LIMIT_LOW)
    finite = exact.isfinite() & close.isfinite()
    error = torch.linalg.vector_norm((exact - close)[finite])
    if error > limit * torch.linalg.vector_norm(exact[finite]):
        return f"norm-wise error above {limit:g}"
    return None
