"""Folds rows that say the same thing of many places into one, for every rendered format."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

from planner.report.model import (
    BackendCoverage,
    FusionRow,
    NumericsRow,
    OpRow,
    RejectionRow,
)

_NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")
_INDEX = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class FusionGroup:
    """Fusions alike in rule, kernel, source line and verdict. Times are means over `places`,
    microseconds.
    """

    first: FusionRow
    places: int
    module: str
    predicted_us: float | None
    before_us: float | None
    measured_us: float | None

    @property
    def ratio(self) -> float | None:
        """Before over after, None when either is unknown."""
        if self.before_us is None or not self.measured_us:
            return None
        return self.before_us / self.measured_us


@dataclass(frozen=True, slots=True)
class CoverageGroup:
    """Coverage rows of one operator with one level and reason, over all shapes.

    `calls` and `share` are of one forward; `share` is None when a time is unknown.
    """

    op: str
    level: str
    reason: str
    calls: int
    share: float | None


@dataclass(frozen=True, slots=True)
class NumericsGroup:
    """Checks of one dtype and measure: how many, how many failed, and the one nearest to or
    furthest past its limit.
    """

    dtype: str
    measure: str
    checks: int
    failed: int
    worst: NumericsRow


def fusions(rows: Iterable[FusionRow]) -> list[FusionGroup]:
    """Groups in order of first appearance, kept ones first."""

    def alike(row: FusionRow) -> object:
        reason = _NUMBER.sub("#", row.reason)
        return row.rule, row.kernel, row.source, row.kept, reason, _INDEX.sub("*", row.module)

    groups = [
        FusionGroup(
            members[0],
            len(members),
            _INDEX.sub("*", members[0].module) if len(members) > 1 else members[0].module,
            _mean(row.predicted_us for row in members),
            _mean(row.before_us for row in members),
            _mean(row.measured_us for row in members),
        )
        for members in _grouped(rows, alike)
    ]
    return sorted(groups, key=lambda group: not group.first.kept)


def rejections(rows: Iterable[RejectionRow]) -> list[tuple[RejectionRow, int]]:
    """The first of each rule, stage and reason (numbers apart) with its count, most frequent
    first.
    """
    groups = _grouped(rows, lambda row: (row.rule, row.stage, _NUMBER.sub("#", row.reason)))
    return sorted(((members[0], len(members)) for members in groups), key=lambda g: -g[1])


_DIRECT = ("native", "converter")
"""Levels with nothing to explain: the table names the operator itself."""


def not_direct(coverage: BackendCoverage, ops: Iterable[OpRow]) -> list[CoverageGroup]:
    """Rows whose operator the backend does not run or translate as it is, by share of time and
    calls, the largest first.
    """
    by_id = {op.id: op for op in ops}
    rows = [row for row in coverage.rows if row.level not in _DIRECT]
    result = []
    for members in _grouped(rows, lambda row: (row.op, row.level, row.reason)):
        known = [by_id[row.op_id] for row in members if row.op_id in by_id]
        shares = [op.share for op in known]
        total = sum(s for s in shares if s is not None) if None not in shares and shares else None
        first = members[0]
        calls = sum(op.calls for op in known)
        result.append(CoverageGroup(first.op, first.level, first.reason, calls, total))
    return sorted(result, key=lambda group: (-(group.share or 0.0), -group.calls))


def numerics(rows: Iterable[NumericsRow]) -> list[NumericsGroup]:
    """One group a dtype and measure, those with failures first, then the nearest to its limit."""
    groups = [
        NumericsGroup(
            members[0].dtype,
            members[0].measure,
            len(members),
            sum(not row.passed for row in members),
            max(members, key=lambda row: (not row.passed, _of_limit(row))),
        )
        for members in _grouped(rows, lambda row: (row.dtype, row.measure))
    ]
    return sorted(groups, key=lambda group: (group.failed == 0, -_of_limit(group.worst)))


def _of_limit(row: NumericsRow) -> float:
    """Error as a part of its limit; an unknown error is the worst of all."""
    if row.error is None:
        return float("inf")
    return row.error / row.limit if row.limit else (float("inf") if row.error else 0.0)


def _mean(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if None in known else fmean(value for value in known if value is not None)


def _grouped(rows: Iterable[_T], key: Callable[[_T], object]) -> list[list[_T]]:
    groups: dict[object, list[_T]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.values())
