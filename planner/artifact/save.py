"""Writes a fused module to one .pt2 file: programs, weights, kernel sources, manifest."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind

from fusion_kernels import kernel_json
from fusion_kernels.library import FusedOperator, is_kernel, operator_of, reuse_of
from planner.artifact.archive import add_manifest, parts_of
from planner.artifact.arguments import arguments_of
from planner.artifact.classes import class_paths
from planner.artifact.errors import NotSaved
from planner.artifact.manifest import KERNELS, REPORT, Manifest
from planner.artifact.programs import (
    MAIN,
    UNFUSED,
    constants_of,
    with_weights,
    without_weights,
    write,
)
from planner.artifact.weights import tensor_at, weights_of
from planner.environment import fuseplan_version
from planner.fusion.call import signature_of
from planner.fusion.expected import describe, dtype_name, is_plain
from planner.graph.autocast import autocast_of
from planner.report.io import to_json
from planner.whole_file import replacing

if TYPE_CHECKING:
    from planner.fusion.module import FusedModule

_NAME = re.compile(r"\w+")


def save(module: FusedModule, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write `module` to `path`, whole or not at all. See `FusedModule.save`.

    Raises `NotSaved`.
    """
    target = Path(path)
    require_writable(target, force)
    program = module.packable.fused or module.packable.unfused
    refused = module.packable.reason or module.refused_state()
    if program is None or refused:
        raise NotSaved(f"This module cannot be saved: {refused}.")
    twin: nn.Module = module._twin
    weights = weights_of(twin, _buffers_outside_the_state(program.graph_signature))
    _require_captured_weights(twin, program)
    for one in (program, module.packable.unfused):
        for name, value in ({} if one is None else constants_of(one)).items():
            _require_plain(name, value)
    kernels = _Kernels.of(program.graph)
    programs = {MAIN: with_weights(program, twin, weights)}
    shared: tuple[str, ...] = ()
    if module.packable.fused is not None and module.packable.unfused is not None:
        programs[UNFUSED], shared = without_weights(module.packable.unfused, program)
    assert program.call_spec.in_spec is not None
    assert program.call_spec.out_spec is not None
    classes = class_paths(program.call_spec.in_spec, program.call_spec.out_spec)
    report = {REPORT: to_json(module.report)} if hasattr(module, "report") else {}
    with _replacing(target) as temporary:
        write(temporary, programs, {**kernels.files, **report})
        tensors = [tensor_at(twin, weight.name) for weight in weights]
        manifest = Manifest(
            fuseplan=fuseplan_version(),
            torch=torch.__version__,
            program="unfused" if module.packable.fused is None else "fused",
            device=_device(program),
            autocast=autocast_of(program).dtype,
            autocast_regions=autocast_of(program).regions,
            dtypes=tuple(sorted({dtype_name(tensor.dtype) for tensor in tensors})),
            kernels=kernels.names,
            reuse=kernels.reuse,
            shared=shared,
            classes=classes,
            arguments=arguments_of(signature_of(twin)),
            weights=weights,
            parts=parts_of(temporary),
        )
        add_manifest(temporary, manifest)


def require_writable(path: Path, force: bool) -> None:
    """Whether an artifact may be written there; changes nothing.

    Raises `NotSaved` for another suffix, a folder that does not exist, or a file that does while
    `force` is off.
    """
    if path.suffix != ".pt2":
        raise NotSaved(f"{path}: an artifact's name ends in .pt2.")
    if not path.parent.is_dir():
        raise NotSaved(f"{path}: there is no folder {path.parent}.")
    if path.is_dir() or (path.exists() and not force):
        raise NotSaved(
            f"{path}: is there already. Name another file, or replace this one with --force "
            "(in Python: force=True)."
        )


@dataclass(frozen=True, slots=True)
class _Kernels:
    """The operators of a graph: their names, their files, and which input each call overwrites."""

    names: tuple[str, ...]
    files: dict[str, str]
    reuse: tuple[int | None, ...]

    @classmethod
    def of(cls, graph: fx.Graph) -> _Kernels:
        calls = [_called(node.target) for node in graph.nodes if is_kernel(node.target)]
        files: dict[str, str] = {}
        for operator, _ in calls:
            assert _NAME.fullmatch(operator.name)
            files[f"{KERNELS}{operator.name}.py"] = operator.source.text
            files[f"{KERNELS}{operator.name}.json"] = kernel_json.to_json(operator.source)
        names = dict.fromkeys(operator.name for operator, _ in calls)
        return cls(tuple(names), files, tuple(index for _, index in calls))


def _called(target: Any) -> tuple[FusedOperator, int | None]:
    """The operator of a call, and the input that the call overwrites."""
    operator = operator_of(target)
    if operator is not None:
        return operator, None
    found = reuse_of(target)
    assert found is not None, f"{target} is no operator of this process"
    return found


def _buffers_outside_the_state(signature: ExportGraphSignature) -> set[str]:
    specs = signature.input_specs
    return {str(s.target) for s in specs if s.kind is InputKind.BUFFER and not s.persistent}


def _require_captured_weights(twin: nn.Module, program: ExportedProgram) -> None:
    specs = program.graph_signature.input_specs
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    for spec, node in zip(specs, placeholders, strict=True):
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            now, captured = tensor_at(twin, str(spec.target)), node.meta["val"]
            _require_plain(str(spec.target), now)
            if (now.shape, now.dtype, now.device) != (
                captured.shape,
                captured.dtype,
                captured.device,
            ):
                raise NotSaved(
                    f"'{spec.target}' is {describe(now)}; the program was captured for "
                    f"{dtype_name(captured.dtype)}{list(captured.shape)} on {captured.device}. "
                    "Fuse the model as it is now, and save that."
                )


def _require_plain(name: str, value: Any) -> None:
    """Anything but a plain tensor would be stored as a pickle, which runs code when it is read."""
    if not is_plain(value) or value.layout is not torch.strided:
        raise NotSaved(f"'{name}' is {describe(value)}; an artifact holds plain tensors only.")


def _device(program: ExportedProgram) -> str:
    values = (node.meta.get("val") for node in program.graph.nodes)
    return next((str(v.device) for v in values if isinstance(v, Tensor)), "cpu")


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """As `replacing`, with the reason of a failure in words."""
    try:
        with replacing(target) as temporary:
            yield temporary
    except OSError as error:
        raise NotSaved(f"{target}: cannot be written ({error.strerror}).") from error
