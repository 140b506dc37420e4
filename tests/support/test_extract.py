"""Extracted and committed tables against the sources themselves: the dispatcher, native_functions,
torch.onnx.
"""

import hashlib
import json
import random
from pathlib import Path

import pytest
import torch
import torchgen
from jsonschema import Draft202012Validator

from planner.errors import MissingPackage
from planner.facts import facts_folder, read_yaml
from planner.report.model import LEVELS
from planner.support import refresh
from planner.support.current import table_for
from planner.support.extract import EXTRACTORS, find_extractor, onnx_registry
from planner.support.extract.interface import installed_release
from planner.support.extract.torch_live import extract_live_cpu
from planner.support.extract.torch_yaml import extract_from_yaml
from planner.support.op_names import to_dispatcher
from planner.support.tables import BackendTable, load_table, table_names

BACKENDS = facts_folder() / "backends"
SCHEMA = json.loads((facts_folder() / "schema" / "backend-table.schema.json").read_text("utf-8"))
CHECKED = "2026-11-30"


@pytest.mark.parametrize("name", table_names())
def test_a_committed_table_fits_the_schema(name: str) -> None:
    content = read_yaml(BACKENDS / f"{name}.yaml")
    assert [error.message for error in Draft202012Validator(SCHEMA).iter_errors(content)] == []


def test_schema_and_report_know_the_same_levels() -> None:
    assert set(SCHEMA["$defs"]["level"]["enum"]) == set(LEVELS)


@pytest.mark.parametrize(
    "entry",
    [
        "supported",
        "conditional",
        {"level": "conditional"},
        {"level": "native", "condition": "even sizes"},
        {"level": "native", "dtype": ["float32"]},
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(entry: object) -> None:
    content = {**read_yaml(BACKENDS / "cpu.yaml"), "entries": {"aten.mm.default": entry}}
    assert list(Draft202012Validator(SCHEMA).iter_errors(content))


@pytest.mark.parametrize("name", [extractor.name for extractor in EXTRACTORS])
def test_refreshing_twice_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    texts = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        texts.append(refresh.refresh(name, CHECKED, folder).read_bytes())
    assert texts[0] == texts[1]
    committed = load_table(name).provenance.packages
    if installed_release(tuple(committed)) == dict(committed):
        assert texts[0] == (BACKENDS / f"{name}.yaml").read_bytes()


def test_refreshing_an_unknown_name_is_a_user_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert refresh.main(["abacus", "--folder", str(tmp_path)]) == 2
    assert "'abacus'. Known: cpu, cuda, onnx" in capsys.readouterr().err


def test_cpu_entries_agree_with_the_dispatcher() -> None:
    table = extract_live_cpu(CHECKED)
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    for op in random.Random(0).sample(sorted(table.entries), 400):
        assert (table.entries[op].level == "native") == has_kernel(to_dispatcher(op), "CPU"), op


def test_what_the_cpu_table_calls_unsupported_is_refused_by_torch(cpu_table: BackendTable) -> None:
    image, weight = torch.randn(1, 2, 5, 5), torch.randn(2, 1, 3, 3)
    assert cpu_table.entries["aten._conv_depthwise2d.default"].level == "unsupported"
    with pytest.raises(NotImplementedError):
        torch.ops.aten._conv_depthwise2d(image, weight, [3, 3], None, [1, 1], [0, 0], [1, 1])


def test_a_generated_variant_is_no_better_than_its_original(cpu_table: BackendTable) -> None:
    entry = cpu_table.entries["aten._conv_depthwise2d.out"]
    assert entry.level == "unsupported"
    generated = cpu_table.entries["aten._cudnn_rnn.out"]
    assert generated.level == "unsupported"
    assert "generated from aten._cudnn_rnn.default" in str(generated.note)


def test_the_yaml_of_a_device_agrees_with_its_live_dispatcher() -> None:
    by_file = extract_from_yaml("cpu", "PyTorch CPU", "CPU", CHECKED).entries
    live = extract_live_cpu(CHECKED).entries
    levels = {op: entry.level.replace("native_delegate", "native") for op, entry in by_file.items()}
    assert len(levels) > 3000
    assert {op for op, level in levels.items() if live[op].level != level} == set()


@pytest.mark.parametrize(
    ("op", "level", "via"),
    [
        ("aten.add.Tensor", "native_delegate", "aten.add.out"),
        ("aten.add.out", "native", None),
        ("aten.gelu.default", "native_delegate", "aten.gelu.out"),
        ("aten.isin.Tensor_Tensor", "native_delegate", "aten.isin.Tensor_Tensor_out"),
        ("aten.all.default", "native_delegate", "aten.all.all_out"),
        ("aten.all.dim", "native_delegate", "aten.all.out"),
        ("aten.native_layer_norm.default", "native", None),
        ("aten.linear.default", "composite_implicit", None),
        ("aten.scaled_dot_product_attention.default", "composite_implicit", None),
        ("aten.convolution.default", "composite_explicit", None),
        ("aten._scaled_dot_product_flash_attention_for_cpu.default", "unsupported", None),
    ],
)
def test_facts_of_the_cuda_table(
    cuda_table: BackendTable, op: str, level: str, via: str | None
) -> None:
    assert (cuda_table.entries[op].level, cuda_table.entries[op].via) == (level, via)


def test_the_cuda_table_names_the_kernel(cuda_table: BackendTable) -> None:
    assert cuda_table.entries["aten.gelu.default"].evidence == "CUDA: gelu_out_cuda"


def test_the_key_is_a_parameter() -> None:
    mps = extract_from_yaml("mps", "PyTorch MPS", "MPS", CHECKED).entries
    assert mps["aten.linear.default"].level == "native"
    assert mps["aten.linalg_eigh.default"].level != "native"


def test_the_recorded_digest_is_that_of_the_file() -> None:
    provenance = extract_from_yaml("cuda", "PyTorch CUDA", "CUDA", CHECKED).provenance
    path = Path(torchgen.__path__[0]).parent / str(provenance.file)
    assert provenance.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_onnx_entries_agree_with_the_registry(onnx_table: BackendTable) -> None:
    registry = onnx_registry.extract_onnx(CHECKED)
    assert set(registry.entries) >= {"aten.gelu.default", "aten.all.dim", "aten.max.dim"}
    assert "aten.isin.Tensor_Tensor" not in registry.entries
    assert onnx_table.default_level == "unsupported"


@pytest.mark.parametrize(
    ("op", "accepts", "refuses"),
    [
        ("aten.hardsigmoid.default", "float64", "int64"),
        ("aten.where.self", "float32", "complex64"),
        ("aten.embedding.default", "bfloat16", "float8_e5m2"),
        ("aten.cat.default", "int64", "uint64"),
        ("aten.mul.Tensor", "complex64", "uint16"),
    ],
)
def test_onnx_dtypes_are_those_of_the_result(
    onnx_table: BackendTable, op: str, accepts: str, refuses: str
) -> None:
    dtypes = onnx_table.entries[op].dtypes
    assert dtypes is not None
    assert accepts in dtypes
    assert refuses not in dtypes


def test_an_untyped_onnx_parameter_leaves_dtypes_unknown(onnx_table: BackendTable) -> None:
    assert onnx_table.entries["aten._assert_async.msg"].dtypes is None
    assert all(entry.dtypes != () for entry in onnx_table.entries.values())


def test_without_onnxscript_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_registry, "find_spec", lambda _: None)
    with pytest.raises(MissingPackage, match=r"fuseplan\[onnx\]"):
        onnx_registry.extract_onnx(CHECKED)


def test_the_table_of_the_installed_release_says_so() -> None:
    table = table_for("cuda")
    assert table.installed == f"torch {torch.__version__.partition('+')[0]}"
    assert table.matches_installed


def test_another_release_is_extracted_from_the_installed_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    older = _pretend_committed(monkeypatch, "cpu", "2.0.0")
    table = table_for("cpu", today="2027-01-01")
    assert table.matches_installed
    assert table.provenance.source.checked == "2027-01-01"
    assert len(table.entries) > len(older.entries)


def test_a_missing_package_leaves_the_committed_table(monkeypatch: pytest.MonkeyPatch) -> None:
    older = _pretend_committed(monkeypatch, "onnx", "2.0.0")
    monkeypatch.setattr(onnx_registry, "find_spec", lambda _: None)
    table = table_for("onnx")
    assert table.entries == older.entries
    assert not table.matches_installed


def test_every_extractor_is_found_by_name() -> None:
    assert [find_extractor(item.name) for item in EXTRACTORS] == list(EXTRACTORS)
    assert find_extractor("abacus") is None


def _pretend_committed(monkeypatch: pytest.MonkeyPatch, name: str, version: str) -> BackendTable:
    from dataclasses import replace

    from planner.support import current

    table = load_table(name)
    packages = {**table.provenance.packages, "torch": version}
    first = dict(list(table.entries.items())[:5])
    older = replace(table, entries=first, provenance=replace(table.provenance, packages=packages))
    monkeypatch.setattr(current, "load_table", lambda _: older)
    return older
