"""Reports survive writing and reading, and broken ones are refused with the key path."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.report.io import UnreadableReport, from_json, read_report, to_json
from planner.report.model import NumericsRow, Report


def test_round_trip_keeps_every_field(report: Report) -> None:
    assert from_json(to_json(report)) == report


def test_keys_stand_in_the_order_of_the_model(report: Report) -> None:
    assert list(json.loads(to_json(report)))[:3] == ["environment", "model", "capture"]


def test_unknown_figures_are_null(report: Report) -> None:
    ops = json.loads(to_json(report))["ops"]
    assert ops[-1]["total_us"] is None


def test_an_infinite_error_is_written_as_null(report: Report) -> None:
    row = NumericsRow("kernel", "float32", float("inf"), None, 1e-5, passed=False)
    content = json.loads(to_json(replace(report, numerics=(row,))))
    assert content["numerics"][0]["error"] is None


def test_an_infinite_figure_that_must_be_known_is_refused(report: Report) -> None:
    row = NumericsRow("kernel", "float32", None, None, float("nan"), passed=False)
    with pytest.raises(ValueError, match=r"numerics\[0\]\.limit"):
        to_json(replace(report, numerics=(row,)))


def _set(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        holder: Any = content
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = value

    return change


def _drop(*path: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        holder: Any = content
        for key in path[:-1]:
            holder = holder[key]
        del holder[path[-1]]

    return change


BROKEN = [
    (_set("schema_version", value=2), "schema_version 2"),
    (_drop("schema_version"), "no schema_version"),
    (_drop("ops"), "ops: is missing"),
    (_drop("ops", 0, "calls"), r"ops\[0\]\.calls: is missing"),
    (_set("ops", 0, "colour", value="red"), r"ops\[0\]\.colour: is not a key"),
    (_set("ops", 0, "calls", value="12"), r'ops\[0\]\.calls: "12" is not a whole number'),
    (_set("ops", 0, "calls", value=True), r"ops\[0\]\.calls: true is not a whole number"),
    (_set("ops", 0, "calls", value=1.5), r"ops\[0\]\.calls: 1.5 is not a whole number"),
    (_set("ops", 0, "calls", value=None), r"ops\[0\]\.calls: null is not a whole number"),
    (_set("ops", 0, "total_us", value="1"), r"ops\[0\]\.total_us: .* a number or null"),
    (_set("ops", 0, "kind", value="guessed"), r"ops\[0\]\.kind: 'guessed' is none of"),
    (_set("ops", 0, "shapes", 0, value=3), r"ops\[0\]\.shapes\[0\]: 3 is not a list"),
    (_set("profile", "unlinked", 0, value=["a"]), r"unlinked\[0\]: holds 1 items where 2"),
    (_set("coverage", "onnx", "rows", 0, "level", value=1), r"coverage\.onnx\.rows\[0\]\.level"),
    (_set("coverage", value=[]), r"coverage: \[\] is not an object"),
    (_set("fusions", 0, "kept", value=1), r"fusions\[0\]\.kept: 1 is not true or false"),
]


@pytest.mark.parametrize(("change", "said"), BROKEN)
def test_a_broken_report_is_refused(
    report: Report, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    content = json.loads(to_json(report))
    change(content)
    with pytest.raises(UnreadableReport, match=said):
        from_json(json.dumps(content))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"report"'])
def test_text_that_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(UnreadableReport, match=r"some\.json"):
        from_json(text, "some.json")


def test_a_key_with_a_default_may_be_missing(report: Report) -> None:
    content = json.loads(to_json(report))
    del content["outcome"]
    assert from_json(json.dumps(content)) == replace(report, outcome=None)


def test_a_folder_and_its_file_read_alike(report: Report, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(to_json(report))
    assert read_report(tmp_path) == read_report(tmp_path / "report.json") == report


@pytest.mark.parametrize("name", ["", "nowhere", "nowhere/report.json"])
def test_a_missing_report_says_what_to_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnreadableReport, match="name the --out folder"):
        read_report(tmp_path / name)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UnreadableReport, match="cannot be read"):
        read_report(tmp_path)
