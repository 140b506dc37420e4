"""Hand-made operator calls and tables for the tests of operator support."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from planner.graph.op_graph import OpNode, TensorMeta
from planner.support.tables import BackendTable, load_table, read_table


def make_tensor(*shape: int, dtype: str = "float32") -> TensorMeta:
    stride: list[int] = []
    step = 1
    for size in reversed(shape):
        stride.insert(0, step)
        step *= size
    return TensorMeta(shape, dtype, tuple(stride), "cpu")


def make_node(
    op: str, *args: object, out: tuple[TensorMeta, ...] = (), name: str = "node", **kwargs: object
) -> OpNode:
    inputs = tuple(item for item in (*args, *kwargs.values()) if isinstance(item, TensorMeta))
    return OpNode(name, op, args, kwargs, inputs, out, "", "", None, ())


@pytest.fixture
def tensor() -> Callable[..., TensorMeta]:
    return make_tensor


@pytest.fixture
def node() -> Callable[..., OpNode]:
    return make_node


@pytest.fixture
def raw_table() -> dict[str, object]:
    """The smallest valid content of a table's file."""
    return {
        "schema": 1,
        "name": "made-up",
        "title": "Made-Up",
        "family": "dispatcher",
        "dispatch_key": "PrivateUse1",
        "default": {"level": "unknown", "reason": "The source does not say."},
        "provenance": {
            "kind": "source_code",
            "ref": "its operator list",
            "checked": "2026-11-30",
            "packages": {"made-up-torch": "1.0"},
            "extractor": "by hand",
        },
        "entries": {"aten.gelu.out": "native"},
    }


@pytest.fixture
def table_from(raw_table: dict[str, object], tmp_path: Path) -> Callable[..., BackendTable]:
    """Writes the table with some fields replaced and reads it back."""

    def write_and_read(**changes: object) -> BackendTable:
        path = tmp_path / "made-up.yaml"
        path.write_text(yaml.safe_dump({**raw_table, **changes}), encoding="utf-8")
        return read_table(path)

    return write_and_read


@pytest.fixture(scope="session")
def cpu_table() -> BackendTable:
    return load_table("cpu")


@pytest.fixture(scope="session")
def cuda_table() -> BackendTable:
    return load_table("cuda")


@pytest.fixture(scope="session")
def onnx_table() -> BackendTable:
    return load_table("onnx")
