"""`fuseplan report RUN_DIR`: show a kept run again, from its report.json alone."""

from __future__ import annotations

import argparse
from pathlib import Path

from planner.cli import options
from planner.errors import EXIT_DONE


def add(verbs: options.Verbs) -> None:
    """Add the verb's parser."""
    what = "show a kept run again, without the model or the device"
    verb = options.add_verb(verbs, "report", what, _run)
    verb.add_argument(
        "run_dir",
        metavar="RUN_DIR",
        type=Path,
        help="the --out folder of a run, or its report.json",
    )


def _run(args: argparse.Namespace) -> int:
    from planner.cli.show import show
    from planner.report.io import read_report

    show(read_report(args.run_dir), args.format, kept=True)
    return EXIT_DONE
