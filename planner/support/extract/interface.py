"""What an extractor is: a backend's name, the packages it reads, a function that makes its
table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

from planner.support.backend_table import BackendTable


@dataclass(frozen=True, slots=True)
class Extractor:
    """Makes one backend's table from installed packages.

    `extract(checked)` takes the ISO date to write into the provenance. It raises `MissingPackage`
    when a package it reads is not installed.
    """

    name: str
    packages: tuple[str, ...]
    extract: Callable[[str], BackendTable]


def installed_version(package: str) -> str | None:
    """The installed version without its local part ("2.13.0" for "2.13.0+cpu"), or None."""
    try:
        return metadata.version(package).partition("+")[0]
    except metadata.PackageNotFoundError:
        return None


def installed_release(packages: tuple[str, ...]) -> dict[str, str]:
    """The installed versions of `packages`, those that are missing left out."""
    versions = {package: installed_version(package) for package in packages}
    return {package: version for package, version in versions.items() if version is not None}
