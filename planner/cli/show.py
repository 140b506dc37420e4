"""Hands a report to the renderer of a format and writes its text to stdout."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.report.model import Report

_WIDTH_OF_A_PIPE = 100
_PLAIN = str.maketrans({"─": "-", "→": ">", "█": "#", "…": "~"})


def show(report: Report, form: str, *, kept: bool = True) -> None:
    """Write `report` to stdout as `terminal` or `json`.

    `kept` says whether the run has a folder.

    Colour only on a terminal and without NO_COLOR in the environment; the terminal's width, or
    COLUMNS, or 100.
    """
    if form == "json":
        from planner.report.io import to_json

        text = to_json(report)
    else:
        from planner.report.terminal import render

        width = shutil.get_terminal_size((_WIDTH_OF_A_PIPE, 24)).columns
        color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        text = render(report, width=width, color=color, kept=kept)
    sys.stdout.write(_writable(text))


def _writable(text: str) -> str:
    """The text with what stdout's encoding lacks put in ASCII."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
    return text
