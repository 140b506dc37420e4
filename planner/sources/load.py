"""MODEL text and options -> Subject: choose the kind of source, then its inputs, then place both.

Inputs are, in this order, what the builder returns, a file of real data, or made ones.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import FuseplanError
from planner.sources.devices import resolve_device
from planner.sources.options import SourceOptions
from planner.sources.subject import Batch, Built, Subject

if TYPE_CHECKING:
    from torch import nn

_PYTHON = re.compile(r"(?P<where>.+\.py|[A-Za-z_][\w.]*):(?P<name>[A-Za-z_]\w*)")

KNOWN_FORMS = """\
  hf:TYPE              a transformers type or class with random weights: hf:bert, hf:GPT2Model
  hf:DIR               a local checkpoint folder: hf:./my-checkpoint
  FILE.py:NAME         a callable returning a module or (module, args, kwargs), or a module
  package.module:NAME  the same, from an importable module"""


class UnknownModel(FuseplanError):
    """The MODEL text has none of the known forms."""


class UnusedOption(FuseplanError):
    """An option was given that this MODEL or its inputs leave no use for."""


def load_subject(text: str, options: SourceOptions) -> Subject:
    """Build the model that `text` names, in eval mode on `options.device`, with its inputs.

    Of several weighted batches the one with the largest weight runs; among equals the one with
    the most elements. Floating inputs from a file follow the module's dtype unless the file
    states one. The random state of torch is left as it was.

    Raises `UnknownModel`, `UnusedOption`, `BadInputs`, `ModelNotBuilt`, `BadOption` (all wrong
    input), `DeviceMissing` or `MissingPackage` (environment).
    """
    kind = _kind(text)
    device = resolve_device(options.device or "cpu") if _must_place(kind, options) else None
    if kind != "hf" and (options.config or options.settings):
        raise UnusedOption(f"--config and --set belong to hf: models; {text} has no use for them.")

    import torch

    from planner.sources import hf, hf_inputs, place, python

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        built = hf.build(text, options) if kind == "hf" else python.build(text)
    module, placed_notes = place.module(built.module, device, options.dtype)
    batches, input_notes = _batches(text, module, built, options)
    # files and made inputs already follow the module's dtype
    cast_to = options.dtype if built.batch is not None else None
    placed = place.batches(batches, module, cast_to)
    chosen = max(placed, key=lambda batch: (batch.weight, place.elements(batch)))
    notes = (*built.notes, *placed_notes, *input_notes, *_choice_note(placed, chosen))
    advice = hf_inputs.advice(module, options) if kind == "hf" else ""
    return Subject(text, module, chosen.args, chosen.kwargs, placed, notes, advice)


def _kind(text: str) -> str:
    if text.startswith("hf:"):
        return "hf"
    if _PYTHON.fullmatch(text) and not text.startswith("timm:"):
        return "python"
    path = Path(text)
    if path.suffix == ".py":
        raise UnknownModel(f"{text}: say which callable of the file, as in {text}:NAME.")
    raise UnknownModel(f"MODEL '{text}' has no known form. Known forms:\n{KNOWN_FORMS}")


def _must_place(kind: str, options: SourceOptions) -> bool:
    """A builder's own choice of device stands unless one is asked for."""
    return kind == "hf" or options.device is not None


def _batches(
    text: str, module: nn.Module, built: Built, options: SourceOptions
) -> tuple[tuple[Batch, ...], tuple[str, ...]]:
    from planner.sources import data_files, hf_inputs, made_inputs

    if built.batch is not None:
        unused = [*(["--inputs"] if options.inputs_file else []), *_of_made_inputs(options)]
        if unused:
            raise UnusedOption(
                f"{text} returns its own inputs: drop {_listed(unused)}, or return the module "
                "alone."
            )
        return (built.batch,), ()
    if options.inputs_file is not None:
        unused = _of_made_inputs(options)
        if unused:
            raise UnusedOption(f"--inputs gives the whole call: drop {_listed(unused)}.")
        return data_files.read(options.inputs_file, module), ()
    if text.startswith("hf:"):
        batch = hf_inputs.make(module, options)
    else:
        batch = made_inputs.make(module, options)
    return (batch,), (f"inputs made: {made_inputs.describe(batch)}",)


def _of_made_inputs(options: SourceOptions) -> list[str]:
    """The options given that only inputs made here follow."""
    given = {
        "--input": bool(options.inputs),
        "--mask": options.mask != "none",
        "--batch": options.batch is not None,
        "--seq": options.seq is not None,
        "--image": options.image is not None,
    }
    return [name for name, is_given in given.items() if is_given]


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _choice_note(batches: tuple[Batch, ...], chosen: Batch) -> tuple[str, ...]:
    if len(batches) == 1:
        return ()
    position = next(i for i, batch in enumerate(batches, 1) if batch is chosen)
    return (
        f"running batch {position} of {len(batches)}, the one with the largest weight "
        f"({chosen.weight:g})",
    )
