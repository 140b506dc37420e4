"""Device files: strict reading, the committed schema, provenance, and the measured CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
import torch

from planner.cost import devices
from planner.cost.devices import UnknownDevice, device_for, device_names, load_device, match_device
from planner.cost.measure_cpu import measure_cpu
from planner.facts import BadFacts, facts_folder, read_yaml

CLAIM = "{value: 2.5, source: {kind: measured, ref: a copy, checked: 2026-11-30}}"
TEXT = f"""
name: made
title: A made device
matches: [Made 1]
bandwidth_gbs: [{CLAIM}]
launch_overhead_us: []
peak_tflops:
  float32: [{CLAIM}]
  bfloat16: []
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    (tmp_path / "devices").mkdir()
    monkeypatch.setattr(devices, "facts_folder", lambda: tmp_path)

    def write_file(text: str) -> None:
        (tmp_path / "devices" / "made.yaml").write_text(text, encoding="utf-8")

    return write_file


def plain(value: Any) -> Any:
    """YAML days as text, as JSON has them."""
    return json.loads(json.dumps(value, default=lambda day: day.isoformat()))


@pytest.mark.parametrize("name", device_names())
def test_device_files_follow_the_schema(name: str) -> None:
    schema = json.loads((facts_folder() / "schema" / "device.schema.json").read_text())
    content = plain(read_yaml(facts_folder() / "devices" / f"{name}.yaml"))
    jsonschema.Draft202012Validator(schema).validate(content)


@pytest.mark.parametrize("name", device_names())
def test_every_figure_of_a_device_file_has_provenance(name: str) -> None:
    device = load_device(name)
    claims = [claim for entries in device.claims.values() for claim in entries]
    assert claims
    assert all(claim.source.ref and claim.source.checked for claim in claims)


def test_schema_and_reader_know_the_same_dtypes() -> None:
    schema = json.loads((facts_folder() / "schema" / "device.schema.json").read_text())
    listed = schema["properties"]["peak_tflops"]["propertyNames"]["enum"]
    assert set(listed) == set(devices.PEAK_DTYPES)


def test_h200_uses_the_measured_ceilings_first() -> None:
    device = load_device("h200")
    assert device.bandwidth_gbs == 4180
    assert device.peak_tflops["bfloat16"] == 790
    assert device.sources["bandwidth_gbs"].kind == "measured"
    assert [claim.value for claim in device.claims["bandwidth_gbs"]] == [4180, 4800]


def test_figure_without_claim_is_not_known(write: Callable[[str], None]) -> None:
    write(TEXT)
    device = load_device("made")
    assert device.launch_overhead_us is None
    assert device.peak_tflops == {"float32": 2.5}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("launch_overhead_us: []\n", "", "missing launch_overhead_us"),
        ("title:", "colour: red\ntitle:", "unknown field colour"),
        ("name: made", "name: other", "the file is 'made.yaml'"),
        ("value: 2.5", "value: 0", "above zero"),
        ("value: 2.5", "value: fast", "above zero"),
        ("kind: measured", "kind: hearsay", "hearsay"),
        ("2026-11-30", "last week", "such as 2026-11-30"),
        ("bfloat16: []", "bf16: []", "unknown dtype 'bf16'"),
        ("matches: [Made 1]", "matches: []", "at least one"),
        ("bfloat16: []", "bfloat16: 3", "list of claims"),
        ("title:", "title: B\ntitle:", "stands twice"),
    ],
)
def test_bad_device_file_is_refused(
    write: Callable[[str], None], old: str, new: str, message: str
) -> None:
    write(TEXT.replace(old, new))
    with pytest.raises(BadFacts, match=message):
        load_device("made")


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(UnknownDevice, match="h200"):
        load_device("abacus")


def test_reported_name_must_match_whole() -> None:
    assert match_device("NVIDIA H200").name == "h200"
    other = match_device("NVIDIA H200 NVL")
    assert other.name == "unknown"
    assert other.bandwidth_gbs is None
    assert "NVIDIA H200 NVL" in other.reason


def test_gpu_takes_tf32_from_torchs_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    # Stand-ins: torch's own settings, once written, cannot be put back as they were.
    tf32, ieee = SimpleNamespace(fp32_precision="tf32"), SimpleNamespace(fp32_precision="ieee")
    monkeypatch.setattr(torch.backends, "cuda", SimpleNamespace(matmul=tf32))
    monkeypatch.setattr(torch.backends, "cudnn", SimpleNamespace(conv=ieee))
    device = device_for("cuda:0")
    assert (device.name, device.tf32) == ("h200", frozenset({"matmul"}))


def test_other_devices_have_a_reason_and_no_figures() -> None:
    device = device_for("npu")
    assert device.peak_tflops == {}
    assert "'npu'" in device.reason


def test_measured_cpu_has_figures_with_provenance() -> None:
    device = measure_cpu(seconds=0.01)
    assert device.bandwidth_gbs is not None
    assert set(device.peak_tflops) == {"float32", "bfloat16"}
    assert {source.kind for source in device.sources.values()} == {"measured"}
