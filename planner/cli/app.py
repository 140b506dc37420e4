"""Chooses the verb, and turns how it ended into an exit status and, for a mistake, one message.

0 done, 1 a gate fell short, 2 the call or the input is wrong, 3 the environment lacks something,
130 interrupted, 141 nobody reads the output any more. A defect of fuseplan itself keeps its
traceback.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import metadata

from planner.cli import audit, bench, fuse, rank, report
from planner.errors import FuseplanError

INTERRUPTED = 130
BROKEN_PIPE = 141

_VERBS = (audit, rank, fuse, bench, report)


def run(argv: Sequence[str] | None = None) -> int:
    """Parse `argv`, run the verb and return the exit status. Parsing loads no torch."""
    args = parser().parse_args(argv)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except FuseplanError as error:
        if args.debug:
            traceback.print_exc()
        print(f"fuseplan: error: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        if args.debug:
            traceback.print_exc()
        return INTERRUPTED
    except BrokenPipeError:
        # the interpreter flushes stdout once more on its way out, which would fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return status


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="fuseplan",
        description="Which operators a PyTorch model spends its time on, which a backend covers, "
        "and which chains fuse into generated Triton kernels that are verified and raced.",
    )
    top.add_argument("--version", action="version", version=f"fuseplan {_version()}")
    verbs = top.add_subparsers(title="verbs", metavar="VERB", required=True)
    for verb in _VERBS:
        verb.add(verbs)
    return top


def _version() -> str:
    try:
        return metadata.version("fuseplan")
    except metadata.PackageNotFoundError:  # a checkout that is not installed
        return "(not installed)"
