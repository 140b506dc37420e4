"""`fuseplan bench MODEL`: eager, its rivals and the fused model, timed in turn."""

from __future__ import annotations

import argparse

from planner.cli import options
from planner.errors import EXIT_DONE


def add(verbs: options.Verbs) -> None:
    """Add the verb's parser."""
    what = (
        "time eager, torch.compile, the captured program and the fused one in turn in one process"
    )
    verb = options.add_verb(verbs, "bench", what, _run)
    options.add_precision(verb)
    options.add_no_compile(verb)
    options.add_model(verb)


def _run(args: argparse.Namespace) -> int:
    from planner.cli.session import deliver, session

    with session(args) as run:
        from planner import pipeline

        subject = run.subject
        report = pipeline.bench(
            subject.module,
            subject.args,
            subject.kwargs,
            name=subject.name,
            device=args.device,
            out=args.out,
            compile_peer=args.compile_peer,
            seed=args.seed,
            precision=args.precision,
            progress=run.progress,
        )
    deliver(report, args)
    return EXIT_DONE
