"""Says in one sentence what went wrong in the user's own code, with their file and line."""

from __future__ import annotations

import traceback
from pathlib import Path

_LONGEST = 400


def told(error: BaseException, folder: Path | None = None) -> str:
    """`FILE:LINE: ErrorType: message`.

    The line is the last one of the traceback that lies in `folder`, else the last outside torch;
    for a syntax error the line that does not parse.
    """
    text = " ".join(str(error).split())
    message = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if len(message) > _LONGEST:
        message = message[: _LONGEST - 1] + "…"
    place = _place(error, folder)
    return f"{place}: {message}" if place else message


def _place(error: BaseException, folder: Path | None) -> str | None:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    here = str(Path(__file__).parent)
    if folder is not None:
        own = [f for f in frames if f.filename.startswith(str(folder)) and _users(f.filename)]
    else:
        own = [f for f in frames if "/torch/" not in f.filename]
    own = [f for f in own if not f.filename.startswith(here) and not f.filename.startswith("<")]
    return f"{_short(own[-1].filename)}:{own[-1].lineno}" if own else None


def _users(filename: str) -> bool:
    return "site-packages" not in filename


def _short(filename: str) -> str:
    path = Path(filename)
    if path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    _, found, tail = filename.rpartition("site-packages/")
    return tail if found else filename
