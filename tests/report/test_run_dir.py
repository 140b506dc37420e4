"""The output folder: refused when in use, cleared of fuseplan's own files only, written whole."""

from __future__ import annotations

import errno
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from planner.report.io import read_report
from planner.report.model import NumericsRow, Report
from planner.report.run_dir import OutputExists, check, prepare, write_report


def test_a_new_folder_is_made_with_its_parents(tmp_path: Path) -> None:
    prepare(tmp_path / "a" / "b", force=False)
    assert (tmp_path / "a" / "b").is_dir()


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    prepare(tmp_path, force=False)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(OutputExists, match="--force"):
        prepare(tmp_path, force=False)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize("force", [False, True])
def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path, force: bool) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(OutputExists, match="is a file"):
        check(tmp_path / "out", force)


def _texts() -> dict[str, str]:
    """What runs write beside their report: kernels that it names and that it does not."""
    kernel = '"""{}: one kernel instead of 2 operators.\n\nrule       bias_gelu\n"""\n'
    graph = "# {} {}: 3 -> 3 nodes, 0.1 ms\nclass GraphModule: ...\n"
    return {
        "graphs/00_captured.py": graph.format("00", "captured"),
        "graphs/01_normalize.py": graph.format("01", "normalize"),
        "kernels/bias_gelu_bf16_3072_a1b2c3.py": kernel.format("bias_gelu"),
        "kernels/gelu_residual_f32_257_0d1e2f.py": kernel.format("gelu_residual"),
    }


def _write(folder: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def _left(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


@pytest.mark.parametrize("finished", [True, False])
def test_force_replaces_an_earlier_run_and_keeps_all_else(
    report: Report, tmp_path: Path, finished: bool
) -> None:
    prepare(tmp_path, force=False)
    if finished:
        write_report(tmp_path, report)
    own = _texts()
    others = dict.fromkeys(["notes.md", "graphs/my_graph.py", "sub/report.json"], "mine")
    others |= {
        "graphs/02_mine.py": "mine",
        "kernels/my_kernel.py": '"""my_kernel: by hand."""\n',
        "kernels/bias_gelu_bf16_3072_ffffff.py": "mine",
        "kernels/copy.py": own["kernels/bias_gelu_bf16_3072_a1b2c3.py"],
        "kernels/bias_gelu_bf16_3072_a1b2c3_mine.py": own["kernels/bias_gelu_bf16_3072_a1b2c3.py"],
        "graphs/copy.py": own["graphs/00_captured.py"],
    }
    _write(tmp_path, own | others)
    prepare(tmp_path, force=True)
    assert _left(tmp_path) == sorted(others)


def test_force_leaves_what_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "gelu_f32_257_0d1e2f.py").write_bytes(b"\xff\xfe\x00")
    prepare(tmp_path, force=True)
    assert _left(tmp_path) == ["kernels/gelu_f32_257_0d1e2f.py"]


def test_a_check_leaves_nothing_and_makes_no_folder(tmp_path: Path) -> None:
    check(tmp_path / "a" / "b", force=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("under", ["", "deep"])
def test_a_folder_that_takes_no_files_is_refused(
    tmp_path: Path, under: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(OutputExists, match="Read-only file system"):
        check(tmp_path / under, force=False)


def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(OutputExists, match="Not a directory"):
        check(tmp_path / "notes" / "out", force=False)


def test_force_removes_nothing_where_no_run_was(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text('{"mine": 1}')
    (tmp_path / "graphs").mkdir()
    (tmp_path / "graphs" / "01_a.py").write_text("mine")
    prepare(tmp_path, force=True)
    assert (tmp_path / "report.json").exists()
    assert (tmp_path / "graphs" / "01_a.py").exists()


def test_the_written_report_reads_back(report: Report, tmp_path: Path) -> None:
    path = write_report(tmp_path, report)
    assert path == tmp_path / "report.json"
    assert read_report(path) == report
    assert os.listdir(tmp_path) == ["report.json"]


def test_a_report_that_cannot_be_written_leaves_the_old_one(report: Report, tmp_path: Path) -> None:
    write_report(tmp_path, report)
    bad = replace(
        report, numerics=(NumericsRow("k", "float32", None, None, float("nan"), passed=False),)
    )
    with pytest.raises(ValueError, match="limit"):
        write_report(tmp_path, bad)
    assert read_report(tmp_path) == report
    assert os.listdir(tmp_path) == ["report.json"]


def test_a_folder_that_is_gone_is_one_message(report: Report, tmp_path: Path) -> None:
    with pytest.raises(OutputExists, match="cannot be written"):
        write_report(tmp_path / "gone", report)
