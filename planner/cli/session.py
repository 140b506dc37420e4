"""What every verb that runs a model does around the library call: the output folder, the model
and its inputs before; the report's file and text after.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.cli import options
from planner.cli.show import show

if TYPE_CHECKING:
    from planner.progress import Progress
    from planner.report.model import Report
    from planner.sources.subject import Subject


@dataclass(frozen=True, slots=True)
class Session:
    """A loaded model whose forward has run once, and where to say what is going on."""

    subject: Subject
    progress: Progress


@contextmanager
def session(
    args: argparse.Namespace, *, run_model: bool = True, backends: Sequence[str] = ()
) -> Iterator[Session]:
    """Check `backends` and the output folder, load MODEL, try its inputs with one forward (unless
    `run_model` is off), make the folder.

    Inside, whatever prints to stdout (a user's file, a library) goes to stderr: stdout is the
    result alone. The folder is touched only once the model is known to run.

    Raises the errors of `require_tables`, `load_subject`, `run_once` and `prepare`.
    """
    from planner.cli.live import live_progress
    from planner.graph.errors import WrongInputs
    from planner.report import run_dir
    from planner.support.tables import require_tables

    _keep_kineto_quiet(args)
    require_tables(backends)
    if args.out is not None:
        run_dir.check(args.out, args.force)
    with redirect_stdout(sys.stderr), live_progress(quiet=args.quiet) as progress:
        with progress.stage(f"load {args.model}"):
            from planner.sources.load import load_subject
            from planner.sources.trial import run_once

            subject = load_subject(args.model, options.source_options(args))
            _make_current(args.device)
        for note in subject.notes:
            progress.note(note)
        if run_model:
            with progress.stage("run it once"):
                run_once(subject)
        if args.out is not None:
            run_dir.prepare(args.out, args.force)
        try:
            yield Session(subject, progress)
        except WrongInputs as error:
            said = " ".join(filter(None, (str(error), subject.advice)))
            raise WrongInputs(said) from error


def _keep_kineto_quiet(args: argparse.Namespace) -> None:
    """torch's profiler writes its starts and stops to stderr. It reads its level, a number from 0
    to 6 (nothing), from the environment when torch is loaded.
    """
    if not args.debug:
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")


def _make_current(device: str | None) -> None:
    """Kernels start on the current CUDA device; `--device cuda:1` makes that one current."""
    if device is not None and device.startswith("cuda:"):
        import torch

        torch.cuda.set_device(device)


def deliver(report: Report, args: argparse.Namespace) -> None:
    """Write report.json into `--out`, where there is one, and show the report on stdout."""
    from planner.report.run_dir import write_report

    if args.out is not None:
        path = write_report(args.out, report)
        if not args.quiet:
            print(f"written: {path}", file=sys.stderr)
    show(report, args.format, kept=args.out is not None)
