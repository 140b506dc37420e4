"""The report: what every run writes to report.json, as frozen dataclasses with a strict reader
and writer.

Times are microseconds, traffic bytes, shares and gains fractions of 1. A figure that is not known
is None, never 0; `kind` says whether the row's times were measured, predicted or are unknown.
Keys may be added within a schema version, never renamed. The JSON Schema is
coverage/schema/report.schema.json.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

SCHEMA_VERSION = 1

Kind = Literal["measured", "predicted", "unknown"]
Tier = Literal["core", "movement", "long_tail"]
Bound = Literal["memory", "compute", "overhead"]
Stage = Literal["pattern", "users", "check", "numerics", "speed"]
Precision = Literal["exact", "high"]
"""exact: every cast is applied. high: a kernel leaves out those that only lose bits."""
CaptureMethod = Literal["export", "partial", "trace"]

COVERED_LEVELS = (
    "native",
    "native_delegate",
    "converter",
    "composite_explicit",
    "composite_implicit",
    "decomposed",
    "conditional",
)
UNCOVERED_LEVELS = ("stub", "cpu_fallback", "unsupported")
UNKNOWN_LEVEL = "unknown"
LEVELS = (*COVERED_LEVELS, *UNCOVERED_LEVELS, UNKNOWN_LEVEL)


@dataclass(frozen=True, slots=True)
class Environment:
    """Where the figures are from. Holds no host name and no path."""

    fuseplan: str
    python: str
    torch: str
    triton: str | None
    device: str
    device_name: str
    threads: int
    platform: str
    settings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model as asked for: the MODEL text, class, parameter count and bytes, input
    descriptions.
    """

    name: str
    cls: str
    parameters: int
    parameter_bytes: int
    dtype: str
    inputs: dict[str, str]


@dataclass(frozen=True, slots=True)
class Break:
    """Where a capture had to stop: the reason and the user's line."""

    reason: str
    source: str | None


@dataclass(frozen=True, slots=True)
class PassRecord:
    """One pass over the graph: operator counts before and after, and what it did in words."""

    name: str
    nodes_before: int
    nodes_after: int
    duration_us: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CaptureInfo:
    method: CaptureMethod
    graphs: int
    breaks: tuple[Break, ...]
    nodes: int
    passes: tuple[PassRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class ProfileInfo:
    """How the operator times were taken. `wall_us`: median time of one forward without the
    profiler.
    """

    kind: Kind
    iterations: int
    wall_us: float | None
    operators_us: float | None
    linked_us: float | None
    unlinked: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class OpRow:
    """One operator x input shapes x dtypes, all its calls of one forward together."""

    id: str
    op: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    modules: tuple[str, ...]
    sources: tuple[str, ...]
    calls: int
    total_us: float | None
    p20_us: float | None
    p80_us: float | None
    share: float | None
    kind: Kind
    tier: Tier
    flops: int | None
    bytes: int | None
    intensity: float | None
    bound: Bound | None
    attainable_us: float | None
    headroom_us: float | None
    model_gain: float | None


@dataclass(frozen=True, slots=True)
class CoverageRow:
    """What one backend does with one `ops` row. `match` tells how the table entry was found,
    `via` the trail.
    """

    op_id: str
    op: str
    level: str
    reason: str
    dtypes: tuple[str, ...] | None
    match: str | None
    via: tuple[str, ...]
    evidence: str | None


@dataclass(frozen=True, slots=True)
class BackendCoverage:
    """Coverage of the model by one backend: fractions of distinct operators, of calls, of
    measured time.
    """

    table: dict[str, str]
    by_op: float | None
    by_calls: float | None
    by_time: float | None
    unknown_ops: int
    partitions: int | None
    rows: tuple[CoverageRow, ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """One timed configuration of a kernel."""

    config: str
    median_us: float
    p20_us: float
    p80_us: float


@dataclass(frozen=True, slots=True)
class FusionRow:
    """One place of the graph that a generated kernel replaces, or would have. `unrounded` are
    casts to fewer bits among its nodes that the kernel leaves out, and its reference too.
    """

    name: str
    rule: str
    nodes: tuple[str, ...]
    kernel: str
    module: str
    source: str | None
    predicted_us: float | None
    before_us: float | None
    measured_us: float | None
    kept: bool
    reason: str
    trials: tuple[Trial, ...] = ()
    unrounded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RejectionRow:
    """A place where a rule nearly applied, or a candidate was dropped: stage, reason and the node
    in question.
    """

    rule: str
    stage: Stage
    reason: str
    node: str


@dataclass(frozen=True, slots=True)
class LeftRow:
    """Calls of one operator that no kernel took: their eager time (None where a rewrite put them
    in) and why the longest of them, `node`, was left.
    """

    op: str
    calls: int
    us: float | None
    reason: str
    node: str


@dataclass(frozen=True, slots=True)
class FusableTime:
    """Where one eager forward's measured time went, microseconds. `products_us` is that of matrix
    products, convolutions and attention, `total_us` all other.

    Of the total, `in_kernels_us` was taken by kept kernels and `rewritten_us` by rewrites that
    removed the operators; `unlinked_us` is work of eager that no capture has;
    `left` has the rest. `withdrawn_us` is the part of `left` in kernels that won alone and went
    because the whole did not.
    """

    products_us: float
    total_us: float
    in_kernels_us: float
    rewritten_us: float
    withdrawn_us: float
    unlinked_us: float
    left: tuple[LeftRow, ...] = ()

    @property
    def covered(self) -> float | None:
        """Fraction of the total in kernels or removed; None where there is none."""
        taken_us = self.in_kernels_us + self.rewritten_us
        return taken_us / self.total_us if self.total_us else None


@dataclass(frozen=True, slots=True)
class StageRow:
    """A stage of the run: its title, how deep it lies in others (0: in none), and the seconds it
    took, those of the stages inside included.
    """

    title: str
    depth: int
    seconds: float


@dataclass(frozen=True, slots=True)
class NumericsRow:
    """One numerics check: `error` and `limit` in the measure that `measure` names ("element",
    "row", "norm" ...). `case` tells what ran and on which inputs the error was largest.
    """

    subject: str
    dtype: str
    error: float | None
    eager_error: float | None
    limit: float
    passed: bool
    measure: str = ""
    case: str = ""


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    name: str
    median_us: float | None
    p20_us: float | None
    p80_us: float | None
    speedup_vs_eager: float | None
    cold_s: float | None
    peak_bytes: int | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Whole-model times, all rows interleaved in one process; `ratio_*` is eager over fused, pair
    by pair.
    """

    rows: tuple[BenchmarkRow, ...]
    rounds: int = 0
    ratio_low: float | None = None
    ratio_high: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the caller gets and why: the fused program, the rewritten one without kernels
    ("normalized"), or the original module. `extra_weight_bytes`: what copies of its weights take,
    folded or packed.
    """

    result: Literal["fused", "normalized", "original"]
    reason: str
    extra_weight_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a run says. `precision` tells which of the program's casts are applied, in
    the kernels and in the float64 reference of `numerics` alike: all of them ("exact"), or all but
    the `unrounded` ones of the fusions that are kept ("high").
    """

    environment: Environment
    model: ModelInfo
    capture: CaptureInfo
    profile: ProfileInfo
    ops: tuple[OpRow, ...]
    unlinked_share: float | None
    coverage: dict[str, BackendCoverage]
    fusions: tuple[FusionRow, ...]
    rejections: tuple[RejectionRow, ...]
    numerics: tuple[NumericsRow, ...]
    benchmark: Benchmark
    outcome: Outcome | None = None
    precision: Precision = "exact"
    fusable: FusableTime | None = None
    stages: tuple[StageRow, ...] = ()
    schema_version: int = SCHEMA_VERSION
