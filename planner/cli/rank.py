"""`fuseplan rank MODEL`: the priority list for kernel work."""

from __future__ import annotations

import argparse

from planner.cli import options
from planner.errors import EXIT_DONE


def add(verbs: options.Verbs) -> None:
    """Add the verb's parser."""
    what = "list a model's operators by time x calls, with bound, headroom and what could be won"
    options.add_model(options.add_verb(verbs, "rank", what, _run))


def _run(args: argparse.Namespace) -> int:
    from planner.cli.session import deliver, session

    with session(args) as run:
        from planner import pipeline

        subject = run.subject
        report = pipeline.rank(
            subject.module,
            subject.args,
            subject.kwargs,
            name=subject.name,
            device=args.device,
            out=args.out,
            progress=run.progress,
        )
    deliver(report, args)
    return EXIT_DONE
