"""A backend table as YAML text: one line an entry, the same bytes for the same table."""

from __future__ import annotations

from typing import Any

import yaml

from planner.support.backend_table import BackendTable, Provenance, SupportEntry
from planner.support.table_reader import TABLE_SCHEMA_VERSION


def format_table(table: BackendTable) -> str:
    """The table as YAML, one line an entry, entries sorted by name."""
    head: dict[str, Any] = {
        "schema": TABLE_SCHEMA_VERSION,
        "name": table.name,
        "title": table.title,
        "family": table.family,
    }
    if table.dispatch_key is not None:
        head["dispatch_key"] = table.dispatch_key
    if table.chips:
        head["chips"] = list(table.chips)
    head["default"] = {"level": table.default_level, "reason": table.default_reason}
    head["provenance"] = _provenance_fields(table.provenance)
    if table.further_sources:
        further = sorted(table.further_sources.items())
        head["further_sources"] = {key: _provenance_fields(value) for key, value in further}
    lines = [
        f"# Made by `python -m planner.support.refresh {table.name}`; never edited by hand.",
        yaml.safe_dump(head, sort_keys=False, width=96, allow_unicode=True).rstrip(),
        "entries:",
    ]
    citation = table.provenance.citation
    lines += [f"  {op}: {_entry_line(table.entries[op], citation)}" for op in sorted(table.entries)]
    return "\n".join(lines) + "\n"


def _provenance_fields(provenance: Provenance) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "kind": provenance.source.kind,
        "ref": provenance.source.ref,
        "checked": provenance.source.checked,
        "packages": dict(provenance.packages),
        "extractor": provenance.extractor,
    }
    optional = {"file": provenance.file, "sha256": provenance.sha256}
    fields.update({key: value for key, value in optional.items() if value is not None})
    return fields


def _entry_line(entry: SupportEntry, citation: str) -> str:
    fields = _limit_fields(entry.level, entry.dtypes, entry.condition, entry.note)
    if entry.via is not None:
        fields["via"] = entry.via
    if entry.evidence != citation:
        fields["evidence"] = entry.evidence
    if entry.disputed:
        fields["disputed"] = dict(sorted(entry.disputed))
    if entry.chips:
        fields["chips"] = {
            chip: _limit_fields(special.level, special.dtypes, special.condition, special.note)
            for chip, special in sorted(entry.chips.items())
        }
    if list(fields) == ["level"]:
        return entry.level
    flow: str = yaml.safe_dump(
        fields, sort_keys=False, default_flow_style=True, width=10**6, allow_unicode=True
    )
    return flow.rstrip()


def _limit_fields(
    level: str, dtypes: tuple[str, ...] | None, condition: str | None, note: str | None
) -> dict[str, Any]:
    fields: dict[str, Any] = {"level": level}
    if dtypes is not None:
        fields["dtypes"] = sorted(dtypes)
    if condition is not None:
        fields["condition"] = condition
    if note is not None:
        fields["note"] = note
    return fields
