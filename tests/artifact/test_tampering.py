"""Whatever is wrong with an artifact is one clear error, and nothing of it has been used by
then.
"""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import planner
from planner.artifact import load as loading
from planner.artifact import manifest as manifests
from planner.artifact.errors import (
    BrokenArtifact,
    ClassMissing,
    DeviceMissing,
    NotAnArtifact,
    OtherVersion,
)
from planner.errors import FuseplanError

MANIFEST = "archive/extra/fuseplan/manifest.json"


@pytest.fixture(autouse=True)
def nothing_is_used(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Importing, defining and deserializing are failures of these tests."""
    if "may_go_on" in request.fixturenames:
        return

    def never(*_: Any) -> None:
        raise AssertionError("the artifact was used before it was checked")

    for name in ("import_classes", "define", "read"):
        monkeypatch.setattr(loading, name, never)


@pytest.fixture
def may_go_on() -> None:
    """For errors that come after the check of the parts."""


@pytest.fixture
def rewritten(block: Any, tmp_path: Path) -> Callable[..., Path]:
    """The artifact with the parts that `change` gives for each name and content: a list of
    (name, content); sound as a zip file.
    """

    def rewrite(change: Callable[[str, bytes], list[tuple[str, bytes]]]) -> Path:
        path = tmp_path / "changed.pt2"
        with zipfile.ZipFile(block.path) as old, zipfile.ZipFile(path, "w") as new:
            for name in old.namelist():
                for changed, content in change(name, old.read(name)):
                    new.writestr(changed, content)
        return path

    return rewrite


@pytest.fixture
def stated(rewritten: Any) -> Callable[..., Path]:
    """The artifact with other fields in its manifest and, unless told otherwise, the digest that
    belongs to them.
    """

    def state(*, digest: bool = True, **fields: Any) -> Path:
        def change(name: str, content: bytes) -> list[tuple[str, bytes]]:
            if name != MANIFEST:
                return [(name, content)]
            manifest = {**json.loads(content), **fields}
            old = manifest.pop("digest")
            new = manifests._digest(manifest) if digest else old
            return [(name, json.dumps({**manifest, "digest": new}).encode())]

        path: Path = rewritten(change)
        return path

    return state


def _members(path: Path) -> list[zipfile.ZipInfo]:
    with zipfile.ZipFile(path) as archive:
        return [info for info in archive.infolist() if info.file_size]


def _flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def test_one_byte_changed_in_any_part(block: Any, rewritten: Any) -> None:
    names = [info.filename for info in _members(block.path)]
    assert any("weights/weight_0" in name for name in names)
    assert any("models/model.json" in name for name in names)
    assert sum("fuseplan/kernels/" in name for name in names) == 4
    for part in names:
        path = rewritten(
            lambda name, content, part=part: [
                (name, _flipped(content) if name == part else content)
            ]
        )
        with pytest.raises(BrokenArtifact, match="has been changed"):
            planner.load(path)


def test_one_byte_changed_on_disk(block: Any, tmp_path: Path) -> None:
    """The zip's own checksum is wrong as well."""
    whole, path = block.path.read_bytes(), tmp_path / "flipped.pt2"
    for info in _members(block.path):
        with zipfile.ZipFile(block.path) as archive:
            content = archive.read(info.filename)
        at = whole.index(content, info.header_offset) + len(content) // 2
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(BrokenArtifact, match=r"is damaged|has been changed"):
            planner.load(path)


def test_a_changed_kernel_does_not_run(rewritten: Any, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    line = f"\nopen({str(marker)!r}, 'w').close()\n".encode()
    path = rewritten(
        lambda name, content: [(name, content + line if name.endswith(".py") else content)]
    )
    with pytest.raises(BrokenArtifact, match=r"kernels/.*\.py' has been changed"):
        planner.load(path)
    assert not marker.exists()


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.99])
def test_truncated(share: float, block: Any, tmp_path: Path) -> None:
    whole, path = block.path.read_bytes(), tmp_path / "short.pt2"
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(BrokenArtifact, match="cut off"):
        planner.load(path)


@pytest.mark.parametrize("part", ["models/unfused.json", "weights/weight_0", "report.json"])
def test_a_missing_part(part: str, rewritten: Any) -> None:
    path = rewritten(lambda name, content: [] if name.endswith(part) else [(name, content)])
    with pytest.raises(BrokenArtifact, match=rf"{part}' is missing"):
        planner.load(path)


def test_a_part_too_many(rewritten: Any) -> None:
    def added(name: str, content: bytes) -> list[tuple[str, bytes]]:
        more = [("archive/models/other.json", b"{}")] if name == MANIFEST else []
        return [(name, content), *more]

    with pytest.raises(BrokenArtifact, match=r"models/other\.json' that its manifest"):
        planner.load(rewritten(added))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_part_that_is_there_twice(rewritten: Any) -> None:
    path = rewritten(
        lambda name, content: [(name, content)] * (2 if name.endswith("weight_0") else 1)
    )
    with pytest.raises(BrokenArtifact, match="weight_0"):
        planner.load(path)


def test_a_changed_manifest(stated: Any) -> None:
    with pytest.raises(BrokenArtifact, match="manifest has been changed"):
        planner.load(stated(digest=False, device="cuda:0"))


def test_an_unknown_format_version(stated: Any) -> None:
    with pytest.raises(OtherVersion, match="artifact format 2, this fuseplan reads 1"):
        planner.load(stated(format_version=2))


def test_a_manifest_with_other_fields(stated: Any) -> None:
    with pytest.raises(OtherVersion, match="manifest is not as this fuseplan writes one"):
        planner.load(stated(more=1))


def test_not_a_zip_file(tmp_path: Path) -> None:
    path = tmp_path / "text.pt2"
    path.write_text("some text")
    with pytest.raises(NotAnArtifact, match=r"not a \.pt2 file"):
        planner.load(path)


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty.pt2").touch()
    with pytest.raises(NotAnArtifact):
        planner.load(tmp_path / "empty.pt2")


def test_a_pt2_file_of_torch(tmp_path: Path) -> None:
    path = tmp_path / "plain.pt2"
    torch.export.save(torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),)), path)
    with pytest.raises(NotAnArtifact, match="was not saved by fuseplan"):
        planner.load(path)


@pytest.mark.parametrize("name", ["missing.pt2", "."])
def test_no_file(name: str, tmp_path: Path) -> None:
    with pytest.raises(NotAnArtifact, match=r"no such file|cannot be read"):
        planner.load(tmp_path / name)


def test_a_device_that_is_not_here(stated: Any) -> None:
    with pytest.raises(DeviceMissing, match="xpu:7"):
        planner.load(stated(device="xpu:7"))


# --- after the check -------------------------------------------------------------------------


@pytest.mark.usefixtures("may_go_on")
def test_another_torch_is_warned_about(stated: Any, block: Any) -> None:
    x = torch.randn(5, 24)
    with pytest.warns(UserWarning, match=r"saved with torch 2\.1\.0"):
        loaded = planner.load(stated(torch="2.1.0+cu118"))
    assert torch.equal(loaded(x), block.fused(x))


@pytest.mark.usefixtures("may_go_on")
def test_a_program_that_this_torch_cannot_read(
    stated: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Any) -> None:
        raise ValueError("a field of another schema")

    monkeypatch.setattr(loading, "read", fails)
    with pytest.warns(UserWarning, match="saved with"), pytest.raises(OtherVersion, match="wrote"):
        planner.load(stated(torch="2.1.0"))


@pytest.mark.usefixtures("may_go_on")
@pytest.mark.parametrize("path", ["a_module_that_is_not:Here", "json:Missing", "json:JSONDecoder"])
def test_a_class_that_cannot_be_imported(path: str, stated: Any) -> None:
    with pytest.raises(ClassMissing, match=path.partition(":")[2]):
        planner.load(stated(classes=[path]))


@pytest.mark.usefixtures("may_go_on")
def test_without_triton_the_program_without_kernels_runs(
    stated: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading.importlib.util, "find_spec", lambda _: None)
    loaded = planner.load(stated())
    assert loaded.fused  # on CPU the kernels need none
    monkeypatch.setattr(loading, "_require_device", lambda *_: None)
    with pytest.warns(UserWarning, match="triton is not installed"):
        loaded = planner.load(stated(device="cuda:0"))
    assert not loaded.fused
    assert loaded(torch.randn(5, 24)).shape == (5, 24)


def test_every_error_is_the_users_to_mend() -> None:
    for error in (BrokenArtifact, ClassMissing, DeviceMissing, NotAnArtifact, OtherVersion):
        assert issubclass(error, FuseplanError)
    assert "planner.artifact.load" in sys.modules
