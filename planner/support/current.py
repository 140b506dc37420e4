"""The table of a backend for the release installed here: committed when it fits, else extracted
anew where the source is at hand.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date

from planner.errors import MissingPackage
from planner.support.backend_table import BackendTable
from planner.support.extract import find_extractor
from planner.support.extract.interface import installed_release
from planner.support.tables import load_table


def table_for(name: str, today: str | None = None) -> BackendTable:
    """The table of backend `name`, its `installed` set to the release found here.

    Extracts when the installed packages differ from the committed table's; falls back to the
    committed table when a package is missing, and `matches_installed` then says no. `today` is the
    ISO date recorded for an extraction, by default the clock's. Raises `UnknownBackend`,
    `BadFacts`.
    """
    committed = load_table(name)
    release = installed_release(tuple(committed.provenance.packages))
    found = " with ".join(f"{package} {version}" for package, version in release.items())
    installed = found or "none"
    extractor = find_extractor(name)
    if release != dict(committed.provenance.packages) and extractor is not None:
        try:
            fresh = extractor.extract(today or date.today().isoformat())
        except MissingPackage:
            return replace(committed, installed=installed)
        return replace(fresh, installed=installed)
    return replace(committed, installed=installed)
