"""A backend's answer from the table entry that stands for an operator, under whatever name the
table has it.

Order: exact overload, structured delegate, functional / in-place / out= twin, packet (the source
names no overloads).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planner.report.model import COVERED_LEVELS
from planner.support import wording
from planner.support.backend_table import BackendTable, SupportEntry
from planner.support.dtype_limits import OpCall, limiting_dtype
from planner.support.extract.torch_yaml import structured_delegates
from planner.support.op_names import packet_of, twins

Match = Literal[
    "exact", "delegate", "twin", "packet", "composite", "decomposition", "registered", "default"
]


@dataclass(frozen=True, slots=True)
class Resolution:
    """A backend's answer for one operator.

    `level` is one of the report's levels; `dtypes` those the entry allows (None: not said);
    `match` how the entry was found; `via` the operators that run in place of the asked one.
    """

    level: str
    reason: str
    dtypes: tuple[str, ...] | None
    match: Match
    via: tuple[str, ...]
    evidence: str

    @property
    def covered(self) -> bool:
        return self.level in COVERED_LEVELS


def look_up(call: OpCall, table: BackendTable) -> Resolution | None:
    """The answer of the entry that stands for the operator itself, or None."""
    found = entry_for(call.op, table)
    if found is None:
        return None
    entry, match = found
    level, reason = entry.level, wording.entry_reason(entry, match, table)
    met = limiting_dtype(call)
    if level in COVERED_LEVELS and _exceeds(met, entry.dtypes):
        level, reason = "unsupported", wording.dtype_reason(entry, str(met), table)
    elif level == "conditional":
        level = "unknown"
    evidence = wording.entry_evidence(entry, table)
    return Resolution(
        level, reason, entry.dtypes, match, _stand_in(entry, match, call.op), evidence
    )


def entry_for(op: str, table: BackendTable) -> tuple[SupportEntry, Match] | None:
    """The entry that stands for `op`, and how it was found."""
    if op in table.entries:
        entry = table.entries[op]
        return entry, "delegate" if entry.level == "native_delegate" else "exact"
    listed = [name for name in twins(op) if name in table.entries]
    if listed:
        delegate = structured_delegates().get(op)
        if delegate in listed:
            return table.entries[delegate], "delegate"
        return table.entries[listed[0]], "twin"
    packet = table.entries.get(packet_of(op))
    return None if packet is None else (packet, "packet")


def _exceeds(met: str | None, allowed: tuple[str, ...] | None) -> bool:
    return met is not None and allowed is not None and met not in allowed


def _stand_in(entry: SupportEntry, match: Match, op: str) -> tuple[str, ...]:
    """The operator whose kernel runs in place of `op`, where it is another."""
    if entry.via is not None:
        return (entry.via,)
    return () if match == "packet" or entry.op == op else (entry.op,)
