"""The command: `fuseplan`, or `python -m planner`."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own) and return the exit status."""
    from planner.cli.app import run

    return run(argv)


if __name__ == "__main__":
    sys.exit(main())
