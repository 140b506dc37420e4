"""Coverage of a captured model by one backend: a row with a reason an operator, and the
fractions.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from planner.graph.op_graph import OpGraph, OpKey, OpNode
from planner.report.model import COVERED_LEVELS, UNKNOWN_LEVEL, BackendCoverage, CoverageRow
from planner.support.backend_table import BackendTable, provenance_record
from planner.support.resolve import resolve


def cover(
    graph: OpGraph,
    op_ids: Mapping[OpKey, str],
    table: BackendTable,
    times_us: Mapping[OpKey, float | None],
) -> BackendCoverage:
    """What `table`'s backend covers of `graph`, one row an operator x shapes x dtypes.

    `op_ids` names the report row of each key; `times_us` gives the microseconds of all calls of a
    key in one forward, where measured. `by_op` is the fraction of keys, `by_calls` of calls,
    `by_time` of the measured time, None without any. An unknown operator counts as not covered in
    each, and in `unknown_ops`. An empty graph has no fractions.
    """
    groups = graph.by_key()
    rows = {key: _row(op_ids[key], nodes, table) for key, nodes in groups.items()}
    covered = {key for key, row in rows.items() if row.level in COVERED_LEVELS}
    calls = {key: float(len(nodes)) for key, nodes in groups.items()}
    times = {key: time for key in groups if (time := times_us.get(key)) is not None}
    return BackendCoverage(
        table=provenance_record(table),
        by_op=_fraction(dict.fromkeys(groups, 1.0), covered),
        by_calls=_fraction(calls, covered),
        by_time=_fraction(times, covered),
        unknown_ops=sum(row.level == UNKNOWN_LEVEL for row in rows.values()),
        partitions=None,
        rows=tuple(rows.values()),
    )


def _row(op_id: str, nodes: tuple[OpNode, ...], table: BackendTable) -> CoverageRow:
    """The answer for all calls of one key: the first that is not covered, if any.

    Calls of a key can differ in their other arguments, and a composite then in its parts.
    """
    distinct = {repr((node.args, node.kwargs)): node for node in nodes}
    answers = [resolve(node.op, table, node) for node in distinct.values()]
    found = next((answer for answer in answers if not answer.covered), answers[0])
    return CoverageRow(
        op_id=op_id,
        op=nodes[0].op,
        level=found.level,
        reason=found.reason,
        dtypes=found.dtypes,
        match=found.match,
        via=found.via,
        evidence=found.evidence,
    )


def _fraction(weights: Mapping[OpKey, float], covered: Set[OpKey]) -> float | None:
    """The covered part of the weights; None when there is no weight at all."""
    total = sum(weights.values())
    if not total:
        return None
    return sum(weight for key, weight in weights.items() if key in covered) / total
