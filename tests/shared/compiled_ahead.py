"""Kernels compiled ahead of time, as records of a long test."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fusion_kernels.resources import Usage

Compiled = Iterable[tuple[str, Usage, str]]
"""Of each kernel its name, what it uses, and what of that is over its budget, "" where nothing."""


def recorded(kept: Any, key: str, compile_all: Callable[[], Compiled]) -> dict[str, Any]:
    """The ledger's record of `key`, or a new one of what is compiled now."""
    found: dict[str, Any] | None = kept.record(key)
    if found is None:
        compiled = list(compile_all())
        found = {
            "compiled": len(compiled),
            "most_registers": max(usage.registers for _, usage, _ in compiled),
            "most_local_bytes": max(usage.local_bytes for _, usage, _ in compiled),
            "failures": [f"{name}: {over}" for name, _, over in compiled if over],
        }
        kept.add(key, found)
    return found
