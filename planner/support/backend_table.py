"""What is known of a backend's operators, as frozen dataclasses: entries, where they are from,
what absence means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

SourceKind = Literal["datasheet", "documentation", "source_code", "measured", "assumed"]
Family = Literal["dispatcher", "converter"]

SOURCE_KINDS: tuple[SourceKind, ...] = (
    "datasheet",
    "documentation",
    "source_code",
    "measured",
    "assumed",
)
FAMILIES: tuple[Family, ...] = ("dispatcher", "converter")


@dataclass(frozen=True, slots=True)
class Source:
    """Where a fact is from. `ref` is what a reader opens to see it; `checked` an ISO date."""

    kind: SourceKind
    ref: str
    checked: str


@dataclass(frozen=True, slots=True)
class Provenance:
    """A source and the release it was read from.

    `packages` maps each package that decides the content to its version, the main one first.
    `file` is relative to the installation, `sha256` its digest; both are None when the facts were
    read from a running library and no single file holds them.
    """

    source: Source
    packages: Mapping[str, str]
    extractor: str
    file: str | None = None
    sha256: str | None = None

    @property
    def release(self) -> str:
        """The packages with their versions, for a sentence: "torch 2.13.0"."""
        return " with ".join(f"{name} {version}" for name, version in self.packages.items())

    @property
    def citation(self) -> str:
        """The release and the file in it."""
        return f"{self.release}, {self.file or self.source.ref}"


@dataclass(frozen=True, slots=True)
class ChipEntry:
    """What differs on one chip of a backend whose table covers several."""

    level: str
    dtypes: tuple[str, ...] | None = None
    condition: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class SupportEntry:
    """What a backend does with one operator.

    `op` is "aten.add.Tensor", or "aten.add" where the source names operators without overloads.
    `dtypes` are those accepted for the tensors that carry the result's dtype; None means the
    source does not say, never "all". `condition` is what must hold for a `conditional` level,
    `via` the operator that a `native_delegate` runs. `disputed` holds (source name, level) of each
    further source that disagrees.
    """

    op: str
    level: str
    dtypes: tuple[str, ...] | None
    condition: str | None
    note: str | None
    evidence: str
    via: str | None = None
    disputed: tuple[tuple[str, str], ...] = ()
    chips: Mapping[str, ChipEntry] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BackendTable:
    """The operator table of one backend.

    `title` reads in a sentence ("PyTorch CUDA"). A `dispatcher` runs PyTorch's own operators one
    by one, under `dispatch_key` where it has one; a `converter` translates the captured graph.
    `default_level` with `default_reason` says what the absence of an operator means.
    `further_sources` are those that entries' `disputed` names. `installed` is the release found
    on this machine, "" when nobody looked.
    """

    name: str
    title: str
    family: Family
    default_level: str
    default_reason: str
    provenance: Provenance
    entries: Mapping[str, SupportEntry]
    dispatch_key: str | None = None
    chips: tuple[str, ...] = ()
    further_sources: Mapping[str, Provenance] = field(default_factory=dict)
    installed: str = ""

    @property
    def matches_installed(self) -> bool:
        return self.installed == self.provenance.release


def on_chip(table: BackendTable, chip: str) -> BackendTable:
    """The table as it stands for one chip: entries that name the chip take what it says.

    Raises `KeyError` when the table does not know the chip.
    """
    if chip not in table.chips:
        raise KeyError(chip)
    entries = {op: _entry_on_chip(entry, chip) for op, entry in table.entries.items()}
    return replace(table, title=f"{table.title} {chip}", chips=(), entries=entries)


def provenance_record(table: BackendTable) -> dict[str, str]:
    """The provenance as flat text for a report."""
    provenance = table.provenance
    record = {
        "name": table.name,
        "title": table.title,
        "family": table.family,
        "release": provenance.release,
        "kind": provenance.source.kind,
        "ref": provenance.source.ref,
        "checked": provenance.source.checked,
        "extractor": provenance.extractor,
    }
    optional = {"file": provenance.file, "sha256": provenance.sha256}
    record.update({key: value for key, value in optional.items() if value is not None})
    if table.installed:
        record["installed"] = table.installed
        record["matches_installed"] = "yes" if table.matches_installed else "no"
    return record


def _entry_on_chip(entry: SupportEntry, chip: str) -> SupportEntry:
    special = entry.chips.get(chip)
    if special is None:
        return replace(entry, chips={})
    return replace(
        entry,
        level=special.level,
        dtypes=special.dtypes,
        condition=special.condition,
        note=special.note,
        via=entry.via if special.level == "native_delegate" else None,
        chips={},
    )
