"""The committed JSON Schema is the generated one, accepts reports and refuses broken ones."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from planner.facts import facts_folder
from planner.report.io import to_json
from planner.report.model import Report
from planner.report.schema import report_schema, schema_text

COMMITTED = facts_folder() / "schema" / "report.schema.json"


def test_the_committed_schema_is_the_generated_one(refresh_golden: bool) -> None:
    if refresh_golden:
        COMMITTED.write_text(schema_text(), encoding="utf-8")
    assert COMMITTED.read_text(encoding="utf-8") == schema_text()


def test_the_schema_is_a_valid_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(report_schema())


def test_a_report_is_valid(report: Report) -> None:
    _validator().validate(json.loads(to_json(report)))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema_version",), 2),
        (("ops", 0, "kind"), "guessed"),
        (("ops", 0, "calls"), "12"),
        (("ops", 0, "calls"), 1.5),
        (("ops", 0, "colour"), "red"),
        (("profile", "unlinked", 0), ["aten::copy_"]),
        (("coverage", "onnx", "by_op"), "all"),
        (("capture", "method"), "magic"),
        (("outcome", "result"), "both"),
    ],
)
def test_a_wrong_value_is_invalid(report: Report, path: tuple[Any, ...], value: Any) -> None:
    content: Any = json.loads(to_json(report))
    holder = content
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    assert not _validator().is_valid(content)


@pytest.mark.parametrize("key", ["environment", "ops", "benchmark", "schema_version"])
def test_a_missing_key_is_invalid(report: Report, key: str) -> None:
    content = json.loads(to_json(report))
    del content[key]
    assert not _validator().is_valid(content)


def test_every_number_of_the_report_may_be_an_integer(report: Report) -> None:
    content = json.loads(to_json(report))
    content["ops"][0]["total_us"] = 1420
    _validator().validate(content)


def _validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(report_schema())
