"""Loads an artifact: every part checked first, then the operators, then the program."""

from __future__ import annotations

import importlib.util
import os
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import BinaryIO

import torch
from torch.export import ExportedProgram

from fusion_kernels import kernel_json
from fusion_kernels.library import define
from planner.artifact.archive import Archive
from planner.artifact.arguments import signature_from
from planner.artifact.classes import import_classes
from planner.artifact.errors import (
    BrokenArtifact,
    DeviceMissing,
    NotAnArtifact,
    OtherVersion,
)
from planner.artifact.manifest import EXTRA, KERNELS, REPORT, Manifest
from planner.artifact.module import LoadedModule, PackagedModule
from planner.artifact.programs import MAIN, UNFUSED, give_example, overwrite, read
from planner.artifact.weights import plant
from planner.fusion.module import Packable
from planner.graph.autocast import Autocast, note_autocast
from planner.report.io import from_json


def load(path: str | os.PathLike[str]) -> LoadedModule:
    """The module that `fused.save(path)` wrote: called like the original, with its output classes
    and its state_dict. Needs none of the original's code but the classes of its inputs and
    outputs.

    The SHA-256 of every part is compared with the manifest before anything is imported, defined
    or run. That guards against corruption and mix-ups, not against a forger, who can write a
    manifest too: an artifact runs code, so load only files from where you trust.

    It runs the kernels where the captured shapes, dtypes, device and layout are given, else the
    packaged program without kernels, and counts that in `fallbacks`. `plan` is empty; `report` is
    the saved one. Another torch than the one it was saved with is warned about: the numerics were
    checked with that one.

    Raises `NotAnArtifact`, `BrokenArtifact`, `OtherVersion`, `DeviceMissing`, `ClassMissing`;
    calls outside of the captured shapes and dtypes raise `OutsideRange`.
    """
    name = os.fspath(path)
    try:
        with Path(path).open("rb") as stream:
            return _load(stream, name)
    except FileNotFoundError as error:
        raise NotAnArtifact(f"{name}: there is no such file.") from error
    except OSError as error:
        raise NotAnArtifact(f"{name}: cannot be read ({error.strerror}).") from error


def _load(stream: BinaryIO, name: str) -> LoadedModule:
    archive = Archive(stream, name)
    manifest = archive.manifest
    _require_device(manifest, name)
    same_torch = _is_same_torch(manifest, name)
    import_classes(manifest.classes, name)
    _define_kernels(archive, name)
    try:
        programs = read(stream)
        overwrite(programs[MAIN], manifest.reuse)
        module = _module(manifest, programs)
    except Exception as error:
        if same_torch:
            raise BrokenArtifact(f"{name}: its program cannot be read ({error}).") from error
        raise OtherVersion(
            f"{name}: torch {torch.__version__} cannot read the program that torch "
            f"{manifest.torch} wrote ({error}). Load it with that torch, or fuse and save again."
        ) from error
    if EXTRA + REPORT in manifest.parts:
        module.report = from_json(archive.read_extra(REPORT), f"{name}: report.json")
    return module


def _module(manifest: Manifest, programs: dict[str, ExportedProgram]) -> LoadedModule:
    main = programs[MAIN]
    unfused = programs.get(UNFUSED, main)
    if unfused is not main:
        unfused.constants.update({key: main.constants[key] for key in manifest.shared})
    for program in programs.values():
        give_example(program)
        note_autocast(program, Autocast(manifest.autocast, manifest.autocast_regions))
    packaged = PackagedModule(signature_from(manifest.arguments))
    plant(packaged, manifest.weights, {**main.constants, **main.state_dict})
    packaged.hold(unfused)
    packaged.eval()
    with_kernels = manifest.program == "fused" and _kernels_can_run(manifest)
    module = LoadedModule(packaged, main if with_kernels else unfused)
    module.plan = None
    module.packable = Packable(unfused, main if manifest.program == "fused" else None)
    return module


def _define_kernels(archive: Archive, name: str) -> None:
    """Write the kernels' files to a folder that lasts as long as the process, and define their
    operators. Triton reads a kernel's source from its file, at the first call.
    """
    for kernel in archive.manifest.kernels:
        text = archive.read_extra(f"{KERNELS}{kernel}.py")
        try:
            source = kernel_json.from_json(archive.read_extra(f"{KERNELS}{kernel}.json"), text)
        except kernel_json.UnreadableKernel as error:
            raise OtherVersion(
                f"{name}: fuseplan {archive.manifest.fuseplan} wrote the kernel {kernel}, and this "
                f"one cannot read it ({error}). Fuse and save again."
            ) from error
        if source.file_name != kernel:
            raise BrokenArtifact(f"{name}: its kernel {kernel} is called {source.file_name}.")
        folder = Path(tempfile.mkdtemp(dir=_folder().name))
        path = folder / f"{kernel}.py"
        path.write_text(text, encoding="utf-8")
        define(source, path)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="fuseplan_artifact_")


def _kernels_can_run(manifest: Manifest) -> bool:
    """On a GPU they need triton."""
    if torch.device(manifest.device).type == "cpu" or importlib.util.find_spec("triton"):
        return True
    warnings.warn(
        "triton is not installed: the artifact's kernels cannot run, and its program without "
        "kernels takes their place.",
        stacklevel=5,
    )
    return False


def _require_device(manifest: Manifest, name: str) -> None:
    device = torch.device(manifest.device)
    try:
        torch.empty(0, device=device)
    except Exception as error:  # each backend has its own
        raise DeviceMissing(
            f"{name}: was captured on {manifest.device}, which this machine does not have. Fuse "
            "and save the model on a device like the one it will run on."
        ) from error


def _is_same_torch(manifest: Manifest, name: str) -> bool:
    """Whether torch is the one that the artifact was saved with, builds for other devices
    included.
    """
    saved, here = manifest.torch.split("+")[0], torch.__version__.split("+")[0]
    if saved == here:
        return True
    warnings.warn(
        f"{name} was saved with torch {saved}, this is {here}: its numerics were checked with "
        "the other one. Fuse and save again where they matter.",
        stacklevel=4,
    )
    return False
