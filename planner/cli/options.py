"""The options that verbs share, and what is made of them. Parsing needs no torch."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from planner.errors import FuseplanError
from planner.sources.load import KNOWN_FORMS
from planner.sources.options import DTYPES, MASKS, SourceOptions, parse_input, parse_setting

if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

DEFAULT_BACKENDS = ("cpu", "cuda", "onnx")
PRECISIONS = ("exact", "high")
FORMATS = ("terminal", "json")

MODEL_HELP = f"""\
MODEL is one of
{KNOWN_FORMS}

exit status: 0 done, 1 a gate fell short, 2 the call or the input is wrong,
3 the environment lacks something (device, package, compiler)"""

_T = TypeVar("_T")


def add_verb(
    verbs: Verbs, name: str, what: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    """A verb's parser with the options that every verb has."""
    verb = verbs.add_parser(
        name,
        help=what,
        description=what[0].upper() + what[1:] + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.set_defaults(run=run)
    verb.add_argument(
        "--format", choices=FORMATS, default="terminal", help="of the result on stdout"
    )
    verb.add_argument("--debug", action="store_true", help="show the traceback of an error")
    verb.add_argument("-q", "--quiet", action="store_true", help="no progress on stderr")
    return verb


def add_model(verb: argparse.ArgumentParser) -> None:
    """MODEL, how to build it and its inputs, and where the run is kept."""
    verb.epilog = MODEL_HELP
    verb.add_argument("model", metavar="MODEL", help="what to look at; see below")
    build = verb.add_argument_group("the model")
    build.add_argument("--device", metavar="D", help="cpu, cuda or cuda:N (default: cpu)")
    build.add_argument("--dtype", choices=DTYPES, help="cast the model (default: as built)")
    build.add_argument("--seed", type=_natural, default=0, metavar="N", help="(default: 0)")
    build.add_argument(
        "--config", type=Path, metavar="FILE.json", help="hf: a configuration to start from"
    )
    build.add_argument(
        "--set",
        dest="settings",
        type=_typed(parse_setting),
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="hf: one configuration key, as in num_hidden_layers=2; may be repeated",
    )
    _add_inputs(verb)
    out = verb.add_argument_group("the run")
    out.add_argument(
        "--out", type=Path, metavar="DIR", help="keep report, graphs and kernels there"
    )
    out.add_argument("--force", action="store_true", help="replace the files of an earlier run")


def _add_inputs(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("inputs, where the builder returns none")
    group.add_argument(
        "--inputs",
        dest="inputs_file",
        type=Path,
        metavar="FILE",
        help="real data: .safetensors, .npz, or .jsonl with one weighted batch a line, of which "
        "the one with the largest weight runs",
    )
    group.add_argument(
        "--input",
        dest="inputs",
        type=_typed(parse_input),
        action="append",
        default=[],
        metavar="NAME=DTYPE[SIZES]",
        help="make one input, as in ids=int64[8,128]; may be repeated",
    )
    for name, what in (
        ("batch", "rows of made inputs (default: 1)"),
        ("seq", "their sequence length (default: 128, or what the positions allow)"),
        ("image", "their height and width (default: the configuration's, or 224)"),
    ):
        group.add_argument(f"--{name}", type=_positive, metavar="N", help=what)
    group.add_argument(
        "--mask",
        choices=MASKS,
        default="none",
        help="hf: add an attention mask, all ones or with padding on the right (default: none)",
    )


def add_backends(verb: argparse.ArgumentParser) -> None:
    """`--backend`, repeated."""
    verb.add_argument(
        "--backend",
        dest="backends",
        action="append",
        metavar="B",
        help=f"judge coverage by B; may be repeated (default: {' '.join(DEFAULT_BACKENDS)})",
    )


def add_no_compile(verb: argparse.ArgumentParser) -> None:
    """`--no-compile`: torch.compile's cold start is most of a benchmark's time."""
    verb.add_argument(
        "--no-compile",
        dest="compile_peer",
        action="store_false",
        help="leave torch.compile out of the race",
    )


def add_precision(verb: argparse.ArgumentParser) -> None:
    """`--precision`: whether kernels apply casts that only lose bits."""
    verb.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="exact",
        help="exact: kernels apply every cast of the model; high: they leave out casts to 16 bits "
        "between floating values (default: exact)",
    )


def backends(args: argparse.Namespace) -> tuple[str, ...]:
    """The backends asked for, each once, or the default ones."""
    return tuple(dict.fromkeys(args.backends)) if args.backends else DEFAULT_BACKENDS


def source_options(args: argparse.Namespace) -> SourceOptions:
    """What `planner.sources` needs of the arguments."""
    return SourceOptions(
        device=args.device,
        dtype=args.dtype,
        seed=args.seed,
        batch=args.batch,
        seq=args.seq,
        image=args.image,
        inputs=tuple(args.inputs),
        inputs_file=args.inputs_file,
        mask=args.mask,
        config=args.config,
        settings=tuple(args.settings),
    )


def at_least(least: int, what: str) -> Callable[[str], int]:
    """An argument type: a whole number from `least` on."""

    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"'{text}' should be {what}")
        return int(text)

    return parse


_natural = at_least(0, "a whole number, 0 or more")
_positive = at_least(1, "a whole number, 1 or more")


def _typed(parse: Callable[[str], _T]) -> Callable[[str], _T]:
    """A parser of ours as an argparse type, with its message."""

    def convert(text: str) -> _T:
        try:
            return parse(text)
        except FuseplanError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert
