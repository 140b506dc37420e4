"""`fuseplan audit MODEL`: coverage of the model's operators, backend by backend."""

from __future__ import annotations

import argparse
import sys

from planner.cli import gates, options
from planner.errors import EXIT_DONE, EXIT_GATE_FELL_SHORT


def add(verbs: options.Verbs) -> None:
    """Add the verb's parser."""
    what = "say which operators of a model each backend covers, and why not"
    verb = options.add_verb(verbs, "audit", what, _run)
    options.add_backends(verb)
    verb.add_argument(
        "--fail-under",
        type=_percent,
        metavar="PCT",
        help="exit with 1 when a backend covers less than PCT %% of the calls",
    )
    verb.add_argument(
        "--no-measure",
        dest="measure",
        action="store_false",
        help="do not run the model; coverage by time stays unknown",
    )
    options.add_model(verb)


def _run(args: argparse.Namespace) -> int:
    from planner.cli.session import deliver, session

    backends = options.backends(args)
    with session(args, run_model=args.measure, backends=backends) as run:
        from planner import pipeline

        subject = run.subject
        report = pipeline.audit(
            subject.module,
            subject.args,
            subject.kwargs,
            name=subject.name,
            backends=backends,
            device=args.device,
            measure=args.measure,
            out=args.out,
            progress=run.progress,
        )
    deliver(report, args)
    gaps = [] if args.fail_under is None else gates.coverage_gaps(report, args.fail_under)
    for gap in gaps:
        print(f"gate: {gap}", file=sys.stderr)
    return EXIT_GATE_FELL_SHORT if gaps else EXIT_DONE


def _percent(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"'{text}' should be a number from 0 to 100")
    return value
