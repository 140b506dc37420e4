"""Reads real inputs: .safetensors and .npz hold one batch, .jsonl one weighted batch a line.

Keys are forward keywords. A line of .jsonl is
`{"inputs": {name: nested list}, "weight": number, "dtype": {name: dtype}}`; weight (1) and dtype
may be left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from planner.errors import MissingPackage
from planner.graph.op_graph import BYTES_PER_ELEMENT
from planner.sources.made_inputs import BadInputs, check_names
from planner.sources.place import floating_dtype
from planner.sources.subject import Batch

_LINE_KEYS = {"inputs", "weight", "dtype"}


def read(path: Path, module: nn.Module) -> tuple[Batch, ...]:
    """The batches of `path` for `module`, in order, on CPU.

    Floating tensors take the module's dtype, unless a .jsonl line states one.

    Raises `BadInputs` when the file cannot be read or does not fit forward's parameters, and
    `MissingPackage` when safetensors is not installed.
    """
    readers = {".safetensors": _safetensors, ".npz": _npz, ".jsonl": _jsonl}
    reader = readers.get(path.suffix)
    if reader is None:
        raise BadInputs(f"--inputs {path}: use a file of kind {', '.join(readers)}.")
    if not path.is_file():
        raise BadInputs(f"--inputs {path}: there is no such file.")
    batches = reader(path, floating_dtype(module))
    if not batches or not all(batch.kwargs for batch in batches):
        raise BadInputs(f"--inputs {path}: holds no inputs.")
    for batch in batches:
        check_names(module, batch.kwargs)
    return batches


def _safetensors(path: Path, dtype: torch.dtype | None) -> tuple[Batch, ...]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise MissingPackage("safetensors", "hf", "A .safetensors file") from error
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise BadInputs(f"--inputs {path}: cannot be read as safetensors ({error}).") from error
    return (Batch((), _cast(tensors, dtype)),)


def _npz(path: Path, dtype: torch.dtype | None) -> tuple[Batch, ...]:
    import zipfile

    import numpy

    if not zipfile.is_zipfile(path):
        raise BadInputs(f"--inputs {path}: is no .npz archive; numpy.savez writes one.")
    try:
        with numpy.load(path, allow_pickle=False) as held:
            tensors = {name: torch.from_numpy(held[name]) for name in held.files}
    except (OSError, EOFError, ValueError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise BadInputs(f"--inputs {path}: cannot be read as .npz arrays ({error}).") from error
    return (Batch((), _cast(tensors, dtype)),)


def _jsonl(path: Path, dtype: torch.dtype | None) -> tuple[Batch, ...]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputs(f"--inputs {path}: cannot be read as text ({error}).") from error
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    return tuple(_line(f"--inputs {path}, line {number}", line, dtype) for number, line in numbered)


def _line(where: str, line: str, dtype: torch.dtype | None) -> Batch:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise BadInputs(f"{where}: is not JSON ({error}).") from error
    if not isinstance(record, dict) or not isinstance(record.get("inputs"), dict):
        raise BadInputs(f'{where}: write an object {{"inputs": {{name: list}}, "weight": 1}}.')
    if set(record) - _LINE_KEYS:
        unknown = ", ".join(sorted(set(record) - _LINE_KEYS))
        raise BadInputs(f"{where}: unknown key {unknown}; known are inputs, weight, dtype.")
    weight = record.get("weight", 1)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not weight > 0:
        raise BadInputs(f"{where}: weight is {weight!r}; it should be a number above 0.")
    stated = record.get("dtype", {})
    if not isinstance(stated, dict) or set(stated) - set(record["inputs"]):
        raise BadInputs(f"{where}: dtype should map names of inputs to dtypes.")
    kwargs = {
        name: _tensor(f"{where}, '{name}'", values, stated.get(name), dtype)
        for name, values in record["inputs"].items()
    }
    return Batch((), kwargs, float(weight))


def _tensor(where: str, values: Any, stated: str | None, dtype: torch.dtype | None) -> torch.Tensor:
    if stated is not None and stated not in BYTES_PER_ELEMENT:
        raise BadInputs(f"{where}: '{stated}' is not a dtype.")
    try:
        tensor = torch.tensor(values, dtype=getattr(torch, stated) if stated else None)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInputs(f"{where}: is not a tensor written as nested lists ({error}).") from error
    return tensor if stated else _cast({"": tensor}, dtype)[""]


def _cast(
    tensors: Mapping[str, torch.Tensor], dtype: torch.dtype | None
) -> dict[str, torch.Tensor]:
    return {
        name: tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }
