"""The output folder: refused when in use, cleared of fuseplan's own files only, written whole."""

from __future__ import annotations

import os
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


def test_force_replaces_an_earlier_run_and_keeps_all_else(report: Report, tmp_path: Path) -> None:
    prepare(tmp_path, force=False)
    write_report(tmp_path, report)
    own = ["graphs/00_captured.py", "graphs/01_normalize.py", "kernels/bias_gelu_bf16_3072.py"]
    others = ["notes.md", "graphs/my_graph.py", "kernels/my_kernel.py", "sub/report.json"]
    for name in own + others:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    prepare(tmp_path, force=True)
    left = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    assert left == sorted(others)


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
