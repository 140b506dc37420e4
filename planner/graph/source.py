"""Stack traces to the user's line: the innermost frame outside of torch, with a path fit to
print.
"""

from __future__ import annotations

import linecache
import re
import sys
import sysconfig
import traceback
from functools import cache
from pathlib import Path
from types import TracebackType

import torch

from planner.graph.op_graph import SourceLine

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_TORCH_ROOT = str(Path(torch.__file__).parent) + "/"
_LIBRARY_ROOT = sysconfig.get_path("stdlib") + "/"
_OWN_ROOT = str(Path(__file__).parent.parent) + "/"


def source_line(stack_trace: str | None) -> SourceLine | None:
    """The innermost line of a graph node's stack trace that is the user's."""
    frames = _FRAME.findall(stack_trace or "")
    for file, line in reversed(frames):
        if is_user_file(file):
            number = int(line)
            return SourceLine(printable(file), number, linecache.getline(file, number).strip())
    return None


def user_frame(trace: TracebackType | None) -> str | None:
    """`file:line` of the innermost frame of an exception that is the user's, not fuseplan's."""
    own = [
        frame
        for frame in traceback.extract_tb(trace)
        if is_user_file(frame.filename) and not frame.filename.startswith(_OWN_ROOT)
    ]
    return f"{printable(own[-1].filename)}:{own[-1].lineno}" if own else None


@cache
def printable(file: str) -> str:
    """A path without what belongs to one machine: relative to sys.path's entry or the working
    directory.
    """
    path = Path(file)
    roots = [Path(entry).resolve() for entry in sys.path if entry] + [Path.cwd()]
    relative = [path.relative_to(root) for root in roots if path.is_relative_to(root)]
    if not relative:
        return path.name
    return min(relative, key=lambda p: len(p.parts)).as_posix()


def is_user_file(file: str) -> bool:
    """Whether code in `file` is the user's, or of a library that is neither torch nor Python's
    own.
    """
    if file.startswith((_TORCH_ROOT, "<")):
        return False
    return not file.startswith(_LIBRARY_ROOT) or "/site-packages/" in file
