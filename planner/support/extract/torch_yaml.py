"""PyTorch's own devices: tables from the native_functions.yaml in the torch wheel, read by
torchgen, structured delegates resolved.

The file names the kernels of every device, so that the table of a device can be made on a machine
without it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from planner.support.backend_table import BackendTable, Provenance, Source, SupportEntry
from planner.support.extract.generated import demote_generated
from planner.support.extract.interface import Extractor, installed_release
from planner.support.op_names import from_dispatcher

_FILE = "torchgen/packaged/ATen/native/native_functions.yaml"
_ORDINARY_KEYS = ("CPU", "CUDA", "MPS", "XPU", "MTIA")


def extract_from_yaml(name: str, title: str, key: str, checked: str) -> BackendTable:
    """The table of the device whose kernels the file lists under the dispatch key `key`."""
    path = _native_functions_path()
    provenance = Provenance(
        source=Source("source_code", "dispatch entries, structured delegates resolved", checked),
        packages=installed_release(("torch",)),
        extractor="planner.support.extract.torch_yaml",
        file=_FILE,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
    )
    parsed = parsed_native_functions()
    by_name = {str(function.func.name): function for function in parsed.native_functions}
    entries = [
        _entry(function, by_name, parsed.backend_indices, key, provenance.citation)
        for function in parsed.native_functions
    ]
    return BackendTable(
        name=name,
        title=title,
        family="dispatcher",
        default_level="unknown",
        default_reason=(
            "The file lists the aten operators of its PyTorch release; this one is not there."
        ),
        provenance=provenance,
        entries=demote_generated(entries),
        dispatch_key=key,
    )


@cache
def parsed_native_functions() -> Any:
    """torchgen's reading of the installed torch's file: `native_functions`, `backend_indices`.

    Takes a second; the file does not change while the process runs.
    """
    from torchgen.gen import parse_native_yaml  # type: ignore[import-untyped]

    path = _native_functions_path()
    return parse_native_yaml(str(path), str(path.with_name("tags.yaml")))


@cache
def structured_delegates() -> Mapping[str, str]:
    """For every structured operator of the installed torch, the out= variant whose kernel it
    runs.
    """
    return {
        from_dispatcher(f"aten::{function.func.name}"): from_dispatcher(
            f"aten::{function.structured_delegate}"
        )
        for function in parsed_native_functions().native_functions
        if function.structured_delegate is not None
    }


def _native_functions_path() -> Path:
    import torchgen  # type: ignore[import-untyped]

    return Path(torchgen.__path__[0]).parent / _FILE


def _entry(
    function: Any, by_name: dict[str, Any], indices: dict[Any, Any], key: str, citation: str
) -> SupportEntry:
    from torchgen.model import DispatchKey  # type: ignore[import-untyped]

    index = indices[DispatchKey.parse(key)]
    op = from_dispatcher(f"aten::{function.func.name}")
    if index.has_kernel(function):
        kernel = index.get_kernel(function).kernel
        return SupportEntry(op, "native", None, None, None, f"{key}: {kernel}")
    delegate = function.structured_delegate
    if delegate is not None and index.has_kernel(by_name[str(delegate)]):
        kernel = index.get_kernel(by_name[str(delegate)]).kernel
        via = from_dispatcher(f"aten::{delegate}")
        return SupportEntry(op, "native_delegate", None, None, None, f"{key}: {kernel}", via)
    if (
        function.has_composite_explicit_autograd_kernel
        or function.has_composite_explicit_autograd_non_functional_kernel
    ):
        return SupportEntry(op, "composite_explicit", None, None, None, citation)
    if function.has_composite_implicit_autograd_kernel:
        return SupportEntry(op, "composite_implicit", None, None, None, citation)
    target = function if delegate is None else by_name[str(delegate)]
    return SupportEntry(
        op, "unsupported", None, None, _kernels_elsewhere(target, indices), citation
    )


def _kernels_elsewhere(function: Any, indices: dict[Any, Any]) -> str:
    from torchgen.model import DispatchKey

    keys = [key for key in _ORDINARY_KEYS if indices[DispatchKey.parse(key)].has_kernel(function)]
    return f"kernels only for {', '.join(keys)}" if keys else "kernels only for special layouts"


CUDA = Extractor("cuda", ("torch",), partial(extract_from_yaml, "cuda", "PyTorch CUDA", "CUDA"))
