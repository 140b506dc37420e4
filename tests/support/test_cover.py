"""Coverage of a hand-built graph: rows, fractions, what is unknown."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.graph.op_graph import OpGraph, OpKey, OpNode, TensorMeta
from planner.report.model import BackendCoverage
from planner.support.cover import cover
from planner.support.tables import BackendTable

TableFrom = Callable[..., BackendTable]


@pytest.fixture
def graph(node: Callable[..., OpNode], tensor: Callable[..., TensorMeta]) -> OpGraph:
    """Three calls of gelu, one of softplus (in no table), one of sort, one of mm; all distinct."""
    return OpGraph(
        (
            *(node("aten.gelu.default", tensor(4), name=f"gelu_{index}") for index in range(3)),
            node("aten.softplus.default", tensor(4), name="softplus"),
            node("aten.sort.default", tensor(4), name="sort"),
            node("aten.mm.default", tensor(4, 4), tensor(4, 4), name="mm"),
        )
    )


@pytest.fixture
def table(table_from: TableFrom) -> BackendTable:
    entries = {
        "aten.gelu.out": "native",
        "aten.sort.default": "cpu_fallback",
        "aten.mm.default": {"level": "native", "dtypes": ["float32"]},
    }
    return table_from(entries=entries)


def _covered(
    graph: OpGraph, table: BackendTable, times_us: dict[str, float | None] | None = None
) -> BackendCoverage:
    keys: list[OpKey] = list(graph.by_key())
    times = {key: (times_us or {}).get(key.op) for key in keys}
    return cover(graph, {key: f"op{index}" for index, key in enumerate(keys)}, table, times)


def test_a_row_for_every_key_in_order(graph: OpGraph, table: BackendTable) -> None:
    rows = _covered(graph, table).rows
    assert [(row.op_id, row.op, row.level) for row in rows] == [
        ("op0", "aten.gelu.default", "native"),
        ("op1", "aten.softplus.default", "unknown"),
        ("op2", "aten.sort.default", "cpu_fallback"),
        ("op3", "aten.mm.default", "native"),
    ]
    assert all(row.reason and row.evidence for row in rows)


def test_fractions_of_operators_calls_and_time(graph: OpGraph, table: BackendTable) -> None:
    times: dict[str, float | None] = {
        "aten.gelu.default": 30.0,
        "aten.softplus.default": 10.0,
        "aten.sort.default": 50.0,
        "aten.mm.default": 10.0,
    }
    coverage = _covered(graph, table, times)
    assert coverage.by_op == pytest.approx(2 / 4)
    assert coverage.by_calls == pytest.approx(4 / 6)
    assert coverage.by_time == pytest.approx(40 / 100)


def test_unknown_is_counted_apart_and_never_as_covered(graph: OpGraph, table: BackendTable) -> None:
    only_gelu = OpGraph(graph.nodes[:3])
    with_unknown = OpGraph(graph.nodes[:4])
    assert (_covered(only_gelu, table).by_op, _covered(only_gelu, table).unknown_ops) == (1.0, 0)
    coverage = _covered(with_unknown, table)
    assert (coverage.by_op, coverage.unknown_ops) == (0.5, 1)


def test_without_times_there_is_no_fraction_of_time(graph: OpGraph, table: BackendTable) -> None:
    assert _covered(graph, table).by_time is None


def test_an_operator_without_time_is_left_out_of_the_fraction_of_time(
    graph: OpGraph, table: BackendTable
) -> None:
    times: dict[str, float | None] = {"aten.gelu.default": 30.0, "aten.sort.default": 10.0}
    assert _covered(graph, table, times).by_time == pytest.approx(30 / 40)


def test_an_empty_graph_has_no_fractions(table: BackendTable) -> None:
    coverage = _covered(OpGraph(()), table)
    assert (coverage.by_op, coverage.by_calls, coverage.rows) == (None, None, ())


def test_the_dtype_of_the_model_decides(graph: OpGraph, table: BackendTable) -> None:
    half = replace(graph.nodes[5].inputs[0], dtype="float16")
    product = replace(graph.nodes[5], args=(half, half), inputs=(half, half))
    coverage = _covered(OpGraph((product,)), table)
    assert coverage.rows[0].level == "unsupported"
    assert coverage.by_op == 0.0


def test_one_call_with_other_arguments_that_is_not_covered_decides(
    node: Callable[..., OpNode], tensor: Callable[..., TensorMeta], table_from: TableFrom
) -> None:
    whole = node("aten.dropout.default", tensor(4), 0.1, False)
    dropping = node("aten.dropout.default", tensor(4), 0.1, True)
    entries = {"aten.bernoulli_.float": "unsupported", "aten.empty_like.default": "native"}
    table = table_from(entries=entries)
    assert _covered(OpGraph((whole,)), table).by_op == 1.0
    assert _covered(OpGraph((whole, dropping)), table).rows[0].level == "unsupported"


def test_the_provenance_travels_with_the_coverage(graph: OpGraph, table: BackendTable) -> None:
    record = _covered(graph, replace(table, installed="made-up-torch 2.0")).table
    assert record["release"] == "made-up-torch 1.0"
    assert record["checked"] == "2026-11-30"
    assert record["matches_installed"] == "no"


def test_the_same_graph_gives_the_same_coverage(graph: OpGraph, cuda_table: BackendTable) -> None:
    assert _covered(graph, cuda_table) == _covered(graph, cuda_table)
