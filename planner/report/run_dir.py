"""The output folder of a run: refused when it holds something, cleared of an earlier run's files,
and given its report.json in one step.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

from planner.errors import FuseplanError
from planner.report.io import to_json
from planner.report.model import Report
from planner.whole_file import replacing

REPORT = "report.json"
# The first lines of what a run writes: the name in them must be the file's, or someone kept a copy.
_GRAPH = re.compile(r"# (?P<file>\d\d) (?P<name>\w+): \d+ -> \d+ nodes, ")
_KERNEL = re.compile(r'"""(?P<name>\w+): one kernel instead of .*\.\n\nrule +\S')
_HEAD_CHARACTERS = 400


class OutputExists(FuseplanError):
    """The output folder is not empty, or cannot be made or written."""


def check(out: Path, force: bool) -> None:
    """Whether a run may write to `out`; changes nothing.

    Raises `OutputExists` when `out` or a folder above it is a file or takes no files, or when `out`
    holds anything and `force` is off.
    """
    if out.exists() and not out.is_dir():
        raise OutputExists(f"--out {out}: is a file; name a folder.")
    home = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=home):  # permissions alone do not tell for every user
            pass
    except OSError as error:
        raise OutputExists(f"--out {out}: cannot be written ({error.strerror}).") from error
    if out.is_dir() and not force and any(out.iterdir()):
        raise OutputExists(
            f"--out {out}: is not empty. Name another folder, or let --force replace the files of "
            "an earlier run there (other files are kept)."
        )


def prepare(out: Path, force: bool) -> None:
    """Make `out`, and with `force` remove what earlier runs wrote there, finished or not:
    report.json, the numbered graphs, and every kernel, of losing variants too. Every other file
    stays.

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
    target = out / REPORT
    try:
        with replacing(target) as temporary:
            temporary.write_text(to_json(report), encoding="utf-8")
    except OSError as error:
        raise OutputExists(f"--out {out}: cannot be written ({error.strerror}).") from error
    return target


def _earlier(out: Path) -> list[Path]:
    """The files of earlier runs, each told by what it says of itself."""
    graphs = [file for file in (out / "graphs").glob("*.py") if _is_graph(file)]
    kernels = [file for file in (out / "kernels").glob("*.py") if _is_kernel(file)]
    report = out / REPORT
    return [*([report] if _is_report(report) else []), *graphs, *kernels]


def _is_report(file: Path) -> bool:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and {"schema_version", "fusions"} <= content.keys()


def _is_graph(file: Path) -> bool:
    """`01_normalize.py` that starts `# 01 normalize: 412 -> 377 nodes, ...`."""
    head = _GRAPH.match(_head(file))
    return head is not None and file.stem == f"{head['file']}_{head['name']}"


def _is_kernel(file: Path) -> bool:
    """`bias_gelu_bf16_3072_1a2b3c.py` that starts as the kernel `bias_gelu`."""
    head = _KERNEL.match(_head(file))
    return head is not None and bool(re.fullmatch(rf"{head['name']}_\w+_[0-9a-f]{{6}}", file.stem))


def _head(file: Path) -> str:
    try:
        with file.open(encoding="utf-8") as stream:
            return stream.read(_HEAD_CHARACTERS)
    except (OSError, ValueError):  # not a text, or not ours to read
        return ""
