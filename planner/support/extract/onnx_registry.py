"""ONNX: the table of the operators that torch.onnx translates, from its registry and the
signatures of the translations.
"""

from __future__ import annotations

import ast
import inspect
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from planner.errors import MissingPackage
from planner.support.backend_table import BackendTable, Provenance, Source, SupportEntry
from planner.support.extract.interface import Extractor, installed_release
from planner.support.op_names import from_dispatcher

_PACKAGES = ("torch", "onnxscript")
_NAMESPACES = ("aten::", "prims::", "torchvision::")
_REGISTRY_LOG = "torch.onnx._internal.exporter._registration"

_DTYPES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FLOAT8E4M3FN": "float8_e4m3fn",
    "FLOAT8E5M2": "float8_e5m2",
    "FLOAT16": "float16",
    "BFLOAT16": "bfloat16",
    "FLOAT": "float32",
    "DOUBLE": "float64",
}
_COMPLEX = ("complex128", "complex64")
_UNCONSTRAINED = "STRING"
_ASSERTION_PASS = "remove_assertion_nodes"


def extract_onnx(checked: str) -> BackendTable:
    """The table of the exporter's registry at its default opset.

    Raises `MissingPackage` without onnxscript, which holds most translations.
    """
    if find_spec("onnxscript") is None:
        raise MissingPackage("onnxscript", "onnx", "The ONNX operator table")
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with _without_warnings():
        registry = ONNXRegistry.from_torchlib()
    provenance = Provenance(
        source=Source(
            "source_code", f"torch.onnx's registry, opset {registry.opset_version}", checked
        ),
        packages=installed_release(_PACKAGES),
        extractor="planner.support.extract.onnx_registry",
    )
    entries = [
        _entry(from_dispatcher(key), translations)
        for key, translations in registry.functions.items()
        if isinstance(key, str) and key.startswith(_NAMESPACES)
    ]
    entries += [_left_out(op) for op in _assertions()]
    return BackendTable(
        name="onnx",
        title="ONNX (torch.onnx)",
        family="converter",
        default_level="unsupported",
        default_reason=(
            "torch.onnx has no translation for it, and its decompositions do not lead to "
            "operators that have one; the exporter stops there."
        ),
        provenance=provenance,
        entries={entry.op: entry for entry in entries},
    )


def _entry(op: str, translations: list[Any]) -> SupportEntry:
    used = [
        next((item for item in translations if item.is_complex == complex_inputs), None)
        for complex_inputs in (False, True)
    ]
    names = sorted({str(item.onnx_function.__name__) for item in used if item is not None})
    evidence = f"registered: {', '.join(names)}"
    return SupportEntry(op, "converter", _dtypes(*used), None, None, evidence)


def _dtypes(real: Any | None, of_complex: Any | None) -> tuple[str, ...] | None:
    """The dtypes of the parameters that share the result's type.

    The exporter uses the first translation for real inputs, or the first for complex ones, whose
    signature speaks of pairs of reals: complex dtypes are accepted exactly when there is one.
    """
    found = set() if of_complex is None else set(_COMPLEX)
    if real is not None:
        types = _result_types(real.signature)
        if types is None:
            return None
        found.update(_DTYPES[name] for name in types if name in _DTYPES)
    return tuple(sorted(found))


def _left_out(op: str) -> SupportEntry:
    note = "an assertion, which the exporter leaves out"
    return SupportEntry(op, "converter", None, None, note, f"removed: {_ASSERTION_PASS}")


def _assertions() -> list[str]:
    """The operators that the exporter's assertion pass erases, as its source text lists them."""
    from torch.onnx._internal.exporter import _fx_passes

    source = inspect.getsource(getattr(_fx_passes, _ASSERTION_PASS))
    chains = [ast.unparse(node) for node in ast.walk(ast.parse(source))]
    prefix = "torch.ops.aten."
    listed = {chain for chain in chains if chain.startswith(prefix) and chain.count(".") == 4}
    return sorted(chain.removeprefix("torch.ops.") for chain in listed)


def _result_types(signature: Any) -> frozenset[str] | None:
    """Names of the ONNX element types, or None where the signature does not limit them."""
    if signature is None:
        return None
    constraints = [
        parameter.type_constraint
        for parameter in signature.params
        if hasattr(parameter, "type_constraint")
    ]
    results = {output.type_constraint.name for output in signature.outputs}
    shared = [item for item in constraints if item.name in results] or constraints[:1]
    if not shared:
        return None
    names = frozenset(str(kind.dtype.name) for kind in shared[0].allowed_types if kind.dtype)
    return None if _UNCONSTRAINED in names else names


@contextmanager
def _without_warnings() -> Iterator[None]:
    """torch warns of each torchvision operator it leaves out; that is no concern of this table."""
    log = logging.getLogger(_REGISTRY_LOG)
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


ONNX = Extractor("onnx", _PACKAGES, extract_onnx)
