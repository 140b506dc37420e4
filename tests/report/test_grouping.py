"""Rows that say the same of many places become one; rows that differ stay apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.report import grouping
from planner.report.model import BackendCoverage, NumericsRow, Report


def test_repeated_layers_are_one_group_with_the_mean_time(report: Report) -> None:
    group = grouping.fusions(report.fusions)[0]
    assert (group.places, group.module) == (12, "encoder.layer.*.output")
    assert group.before_us == pytest.approx(67.5)
    assert group.ratio == pytest.approx(67.5 / 26.0)


def test_kept_ones_stand_first(report: Report) -> None:
    assert [g.first.kept for g in grouping.fusions(report.fusions)] == [True, False]


def test_an_unknown_time_makes_the_mean_unknown(report: Report) -> None:
    one, two, *_ = (row for row in report.fusions if row.kept)
    (group,) = grouping.fusions((one, replace(two, measured_us=None)))
    assert group.measured_us is None
    assert group.ratio is None


@pytest.mark.parametrize("change", [{"kept": False}, {"source": "other.py:1"}, {"reason": "slow"}])
def test_fusions_that_differ_stay_apart(report: Report, change: dict[str, object]) -> None:
    one, two, *_ = (row for row in report.fusions if row.kept)
    assert len(grouping.fusions((one, replace(two, **change)))) == 2  # type: ignore[arg-type]


def test_rejections_count_alike_reasons(report: Report) -> None:
    groups = grouping.rejections(report.rejections)
    assert [(row.rule, count) for row, count in groups] == [("bias_gelu", 3), ("add_rms_norm", 1)]


def taken_apart(report: Report) -> BackendCoverage:
    """The report's ONNX coverage with every converter replaced by a decomposition."""
    onnx = report.coverage["onnx"]
    rows = tuple(
        replace(row, level="decomposed") if row.level == "converter" else row for row in onnx.rows
    )
    return replace(onnx, rows=rows)


def test_rows_of_one_operator_add_up_over_shapes(report: Report) -> None:
    groups = {g.op: g for g in grouping.not_direct(taken_apart(report), report.ops)}
    linear = groups["aten.linear.default"]
    assert linear.calls == 24
    assert linear.share == pytest.approx((1_420.0 + 1_402.0) / 8_010.0)
    assert "aten.embedding.default" not in groups


def test_what_a_converter_takes_as_it_is_needs_no_row(report: Report) -> None:
    groups = grouping.not_direct(report.coverage["onnx"], report.ops)
    assert {group.level for group in groups} == {"unsupported", "unknown"}


def test_a_share_with_an_unknown_time_is_unknown(report: Report) -> None:
    ops = [replace(report.ops[0], share=None), *report.ops[1:]]
    groups = {g.op: g for g in grouping.not_direct(taken_apart(report), ops)}
    assert groups["aten.linear.default"].share is None


def test_a_failure_is_the_worst_of_its_group_and_stands_first(report: Report) -> None:
    first = grouping.numerics(report.numerics)[0]
    assert (first.checks, first.failed) == (2, 1)
    assert first.worst.subject == "bias_gelu_bf16_3072"


def test_an_unknown_error_is_worse_than_any_known_one() -> None:
    rows = [
        NumericsRow("known", "float32", 1.0, None, 1e-5, passed=False),
        NumericsRow("unknown", "float32", None, None, 1e-5, passed=False),
    ]
    assert grouping.numerics(rows)[0].worst.subject == "unknown"
