"""What a profile is: times of a model's operators, joined to the captured graph, and what did not
join.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.graph.op_graph import OpKey
from planner.timing import Timing


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """All calls of one operator x shapes x dtypes in one forward.

    `node_names` are the graph nodes that ran, in execution order, `calls` how many. `timing` has
    one sample an iteration: the sum over the calls.
    """

    key: OpKey
    node_names: tuple[str, ...]
    calls: int
    timing: Timing


@dataclass(frozen=True, slots=True)
class UnlinkedRow:
    """Work of the eager model that no graph node stands for: an operator ("aten::to") or, on a
    device, a kernel launched outside any operator. `timing`: per-forward sums, as above.
    """

    name: str
    timing: Timing


@dataclass(frozen=True, slots=True)
class Profile:
    """Self times of one forward of the eager model, microseconds, each counted once.

    `wall`: whole forwards without the profiler. `profiled_wall`: with it, host side; on the CPU
    the operators' sum stays below it. On a CUDA device the rows are kernel times. `not_run`
    names graph nodes that eager never executed. `module_calls` counts the calls of each module
    by path ("" is the root). `note` says when the host, not the device, sets the pace. `removed`:
    the part of the unlinked work that stands for operators which the graph has lost to its
    normalization (constants folded, masks dropped), by operator ("aten.arange").
    """

    device: str
    iterations: int
    wall: Timing
    profiled_wall: Timing
    rows: tuple[ProfileRow, ...]
    unlinked: tuple[UnlinkedRow, ...]
    not_run: tuple[str, ...]
    module_calls: tuple[tuple[str, int], ...]
    note: str = ""
    removed: tuple[UnlinkedRow, ...] = ()

    @property
    def linked_us(self) -> float:
        """Median times of all rows, added."""
        return sum(row.timing.median_us for row in self.rows)

    @property
    def unlinked_us(self) -> float:
        """Median times of the work without a graph node, added."""
        return sum(row.timing.median_us for row in self.unlinked)

    @property
    def operators_us(self) -> float:
        """All operator time of one forward, linked or not; shares are fractions of it."""
        return self.linked_us + self.unlinked_us

    @property
    def unlinked_share(self) -> float:
        """Fraction of the operator time that no graph node stands for."""
        total = self.operators_us
        return self.unlinked_us / total if total else 0.0

    def row(self, key: OpKey) -> ProfileRow | None:
        """The row of an operator key, or None when eager ran none of its nodes."""
        return next((row for row in self.rows if row.key == key), None)
