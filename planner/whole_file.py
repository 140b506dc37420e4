"""A file written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A file beside `target` to write to, which takes its place at the end or goes when something
    fails. Raises OSError where it cannot be made or moved.
    """
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".writing.", suffix=target.suffix)
    os.close(handle)
    try:
        yield Path(name)
        Path(name).chmod(0o644)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
