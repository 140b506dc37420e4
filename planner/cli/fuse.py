"""`fuseplan fuse MODEL`: plan, generate, verify, rewrite and race."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from planner.cli import gates, options
from planner.errors import EXIT_DONE, EXIT_GATE_FELL_SHORT


def add(verbs: options.Verbs) -> None:
    """Add the verb's parser."""
    what = "fuse a model's operator chains into generated kernels, verify them, and race the result"
    verb = options.add_verb(verbs, "fuse", what, _run)
    verb.add_argument(
        "--max-fusions",
        type=options.at_least(0, "a whole number, 0 or more"),
        metavar="N",
        help="apply the first N fusions only, to find one that does harm by halving",
    )
    verb.add_argument(
        "--save",
        type=Path,
        metavar="FILE.pt2",
        help="write what came out to one file that planner.load reads; replaced with --force",
    )
    options.add_precision(verb)
    options.add_no_compile(verb)
    options.add_backends(verb)
    options.add_model(verb)


def _run(args: argparse.Namespace) -> int:
    from planner.cli.session import deliver, session

    if args.save is not None:
        from planner.artifact.save import require_writable

        require_writable(args.save, args.force)
    backends = options.backends(args)
    with session(args, backends=backends) as run:
        from planner import pipeline

        subject = run.subject
        fused = pipeline.fuse(
            subject.module,
            subject.args,
            subject.kwargs,
            name=subject.name,
            device=args.device,
            out=args.out,
            max_fusions=args.max_fusions,
            compile_peer=args.compile_peer,
            seed=args.seed,
            precision=args.precision,
            backends=backends,
            progress=run.progress,
        )
    deliver(fused.report, args)
    if args.save is not None:
        fused.save(args.save, force=args.force)
        if not args.quiet:
            print(f"saved: {args.save}", file=sys.stderr)
    gaps = gates.numerics_gaps(fused.report)
    for gap in gaps:
        print(f"gate: {gap}", file=sys.stderr)
    return EXIT_GATE_FELL_SHORT if gaps else EXIT_DONE
