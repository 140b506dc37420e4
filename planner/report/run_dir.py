"""The output folder of a run: refused when it holds something, cleared of an earlier run's files,
and given its report.json in one step.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path

from planner.errors import FuseplanError
from planner.report.io import to_json
from planner.report.model import Report

REPORT = "report.json"
_GRAPH = re.compile(r"\d\d_\w+\.py")


class OutputExists(FuseplanError):
    """The output folder is not empty, or cannot be made or written."""


def check(out: Path, force: bool) -> None:
    """Whether a run may write to `out`; changes nothing.

    Raises `OutputExists` when `out` is a file, or holds anything and `force` is off.
    """
    if out.exists() and not out.is_dir():
        raise OutputExists(f"--out {out}: is a file; name a folder.")
    if out.is_dir() and not force and any(out.iterdir()):
        raise OutputExists(
            f"--out {out}: is not empty. Name another folder, or let --force replace the files of "
            "an earlier run there (other files are kept)."
        )


def prepare(out: Path, force: bool) -> None:
    """Make `out`, and with `force` remove what an earlier run wrote there: report.json, the
    numbered graphs, and the kernels that its report names. Every other file stays.

    Raises `OutputExists` as `check` does, and when the folder cannot be made.
    """
    check(out, force)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for file in _earlier(out):
            file.unlink()
    except OSError as error:
        raise OutputExists(f"--out {out}: cannot be written ({error.strerror}).") from error


def write_report(out: Path, report: Report) -> Path:
    """Write `out`/report.json whole or not at all, and return its path.

    Raises `OutputExists` when it cannot be written.
    """
    text = to_json(report)
    target = out / REPORT
    try:
        handle, name = tempfile.mkstemp(dir=out, prefix=".report.", suffix=".json")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
            Path(name).chmod(0o644)
            os.replace(name, target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OutputExists(f"--out {out}: cannot be written ({error.strerror}).") from error
    return target


def _earlier(out: Path) -> list[Path]:
    """The files of a fuseplan run, by its report; none when there is no such report."""
    report = out / REPORT
    try:
        content = json.loads(report.read_text(encoding="utf-8"))
        if "schema_version" not in content:
            return []
        kernels = {f"{row['kernel']}.py" for row in content["fusions"]}
    except (OSError, ValueError, TypeError, KeyError):
        return []
    graphs = [file for file in (out / "graphs").glob("*.py") if _GRAPH.fullmatch(file.name)]
    own = [file for file in (out / "kernels").glob("*.py") if file.name in kernels]
    return [report, *graphs, *own]
