"""Variants that torch's code generator makes from another variant hold only where that one
does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from planner.support.backend_table import SupportEntry
from planner.support.op_names import overload_of, twins


def demote_generated(entries: Iterable[SupportEntry]) -> dict[str, SupportEntry]:
    """The entries by name; a generated variant whose originals are all unsupported is so too.

    torch registers e.g. `_cudnn_rnn.out` for every device, but it calls `_cudnn_rnn`, which most
    devices lack.
    """
    by_name = {entry.op: entry for entry in entries}
    return {op: _demoted(entry, by_name) for op, entry in by_name.items()}


def _demoted(entry: SupportEntry, by_name: dict[str, SupportEntry]) -> SupportEntry:
    if entry.level != "composite_explicit" or not _is_generated(entry.op):
        return entry
    originals = [by_name[op] for op in twins(entry.op) if op in by_name and not _is_generated(op)]
    if not originals or any(original.level != "unsupported" for original in originals):
        return entry
    note = f"generated from {originals[0].op}, which is unsupported"
    return replace(entry, level="unsupported", note=note)


def _is_generated(op: str) -> bool:
    import torch

    overload = overload_of(op)
    return overload is not None and torch.Tag.generated in overload.tags
