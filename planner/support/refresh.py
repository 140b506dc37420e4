"""`python -m planner.support.refresh NAME...`: make operator tables anew from installed
packages.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from planner.errors import EXIT_DONE, FuseplanError
from planner.facts import facts_folder
from planner.support.extract import extractor_names, find_extractor
from planner.support.tables import UnknownBackend, dump_table


def refresh(name: str, checked: str, folder: Path) -> Path:
    """Extract the table of backend `name` and write it into `folder`; the file's path.

    The same packages and the same `checked` (ISO date) give the same bytes. Raises
    `UnknownBackend` for a name without extractor, `MissingPackage` when its package is missing.
    """
    extractor = find_extractor(name)
    if extractor is None:
        raise UnknownBackend(name, extractor_names())
    path = folder / f"{name}.yaml"
    dump_table(extractor.extract(checked), path)
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m planner.support.refresh", description=__doc__)
    parser.add_argument("names", nargs="+", metavar="NAME", help=", ".join(extractor_names()))
    parser.add_argument(
        "--checked", type=_iso_date, default=date.today().isoformat(), help="date to record"
    )
    parser.add_argument(
        "--folder", type=Path, default=facts_folder() / "backends", help="where to write"
    )
    chosen = parser.parse_args(arguments)
    try:
        for name in chosen.names:
            sys.stdout.write(f"{refresh(name, chosen.checked, chosen.folder)}\n")
    except FuseplanError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    return EXIT_DONE


def _iso_date(text: str) -> str:
    return date.fromisoformat(text).isoformat()


if __name__ == "__main__":
    sys.exit(main())
