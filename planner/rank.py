"""The priority list: one row an operator x shapes x dtypes, the longest total time first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf

from planner.cost.devices import Device
from planner.cost.families import is_work
from planner.cost.roofline import place
from planner.cost.tiers import tier_of
from planner.graph.op_graph import OpGraph, OpKey, OpNode
from planner.profile.model import Profile
from planner.report.model import OpRow


def rank(graph: OpGraph, profile: Profile | None, device: Device) -> tuple[OpRow, ...]:
    """Rows by measured total time, then, where nothing was measured, by attainable time; ids
    "op01", "op02" ... in that order.

    All figures of a row are those of its `calls` in one forward: `total_us`, `flops`, `bytes`,
    `attainable_us`. A measured row counts the calls that eager made; a row without a measured
    time (no profile, or only the capture holds the operator) counts the graph's nodes, has
    `total_us` None and kind "unknown", and may still have an attainable time. `share` and
    `model_gain` are fractions of all operator time of a forward, the unlinked included.
    """
    rows = [
        _row(key, nodes, profile, device) for key, nodes in graph.by_key().items() if _is_op(nodes)
    ]
    rows.sort(key=_priority)
    width = max(2, len(str(len(rows))))
    return tuple(replace(row, id=f"op{index:0{width}d}") for index, row in enumerate(rows, 1))


def op_ids(rows: Iterable[OpRow]) -> Mapping[OpKey, str]:
    """The id of the row that stands for each operator key."""
    return {OpKey(row.op, row.shapes, row.dtypes): row.id for row in rows}


def _is_op(nodes: tuple[OpNode, ...]) -> bool:
    return is_work(nodes[0])


def _row(key: OpKey, nodes: tuple[OpNode, ...], profile: Profile | None, device: Device) -> OpRow:
    measured = profile.row(key) if profile is not None else None
    if measured is not None:
        ran = set(measured.node_names)
        nodes = tuple(node for node in nodes if node.name in ran)
    point = place(nodes, device)
    timing = measured.timing if measured is not None else None
    total_us = timing.median_us if timing is not None else None
    headroom_us = _difference(total_us, point.attainable_us)
    model_us = profile.operators_us if profile is not None else None
    return OpRow(
        id="",
        op=key.op,
        shapes=key.shapes,
        dtypes=key.dtypes,
        modules=_distinct(node.module_path for node in nodes),
        sources=_distinct(str(node.source) for node in nodes if node.source is not None),
        calls=len(nodes),
        total_us=total_us,
        p20_us=timing.p20_us if timing is not None else None,
        p80_us=timing.p80_us if timing is not None else None,
        share=_fraction(total_us, model_us),
        kind="unknown" if total_us is None else "measured",
        tier=tier_of(key.op),
        flops=point.cost.flops,
        bytes=point.cost.bytes,
        intensity=point.intensity,
        bound=point.bound,
        attainable_us=point.attainable_us,
        headroom_us=headroom_us,
        model_gain=_fraction(headroom_us, model_us),
    )


def _priority(row: OpRow) -> tuple[float, float]:
    """Sort key: measured rows first, longest first; then predicted, longest first."""
    total = inf if row.total_us is None else -row.total_us
    attainable = inf if row.attainable_us is None else -row.attainable_us
    return total, attainable


def _distinct(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def _difference(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left - right


def _fraction(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole
