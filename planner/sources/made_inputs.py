"""Makes inputs for a module from its forward signature and first layers, or as told by `--input`.

Integers that stand for ids are random within the vocabulary; masks are ones; positions count up;
floating inputs are normal random numbers.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from planner.errors import FuseplanError
from planner.sources.options import InputSpec, SourceOptions
from planner.sources.place import floating_dtype
from planner.sources.subject import Batch

_IDS = re.compile(r"(^|_)(ids?|idx|indices|index|tokens?|labels?)$")
_IMAGE = re.compile(r"(^|_)(pixel_values|images?|imgs?|pictures?)$")
_DEFAULT_SEQ = 128
_DEFAULT_IMAGE = 224


class BadInputs(FuseplanError):
    """The inputs given do not fit the model, or none can be made without being told more."""


def make(module: nn.Module, options: SourceOptions) -> Batch:
    """One batch for `module`: every `--input`, and a guess for each other required parameter.

    Raises `BadInputs` when a name is not a parameter of forward or a needed shape cannot be
    guessed.
    """
    if options.mask != "none":
        raise BadInputs("--mask is for hf: models; here give --input attention_mask=int64[8,128].")
    draw = torch.Generator().manual_seed(options.seed)
    named = {spec.name: spec for spec in options.inputs}
    check_names(module, named)
    required = _required(module)
    specs = {
        name: named.get(name) or _guess(module, name, options, alone=len(required) == 1)
        for name in required
    }
    unknown = [name for name, spec in specs.items() if spec is None]
    if unknown:
        wanted = " ".join(f"--input {name}=float32[1,16]" for name in unknown)
        raise BadInputs(
            f"no shape can be guessed for {', '.join(unknown)} of {type(module).__name__}.forward."
            f" State them, in the form {wanted}, or have the builder return (module, args, kwargs)."
        )
    every = {**specs, **named}
    kwargs = {n: tensor_for(s, draw, vocabulary(module)) for n, s in every.items() if s is not None}
    return Batch((), kwargs)


def tensor_for(spec: InputSpec, draw: torch.Generator, vocab: int | None) -> torch.Tensor:
    """A tensor of the dtype and shape of `spec`, its values chosen by its name."""
    dtype = getattr(torch, spec.dtype)
    if dtype.is_floating_point and "mask" not in spec.name:
        return torch.randn(spec.shape, generator=draw).to(dtype)
    if dtype.is_complex:
        return torch.randn(spec.shape, generator=draw, dtype=dtype)
    if "position" in spec.name and spec.shape:
        return torch.arange(spec.shape[-1]).expand(spec.shape).to(dtype).contiguous()
    if "type_id" in spec.name:
        return torch.zeros(spec.shape, dtype=dtype)
    if _IDS.search(spec.name) and vocab is not None and dtype is not torch.bool:
        top = min(vocab, torch.iinfo(dtype).max)
        return torch.randint(top, spec.shape, generator=draw).to(dtype)
    return torch.ones(spec.shape, dtype=dtype)


def check_names(module: nn.Module, given: Mapping[str, Any]) -> None:
    """Raises `BadInputs` when a name is not a keyword that the module's forward takes."""
    parameters = inspect.signature(module.forward).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    wrong = [name for name in given if name not in parameters]
    if wrong:
        raise BadInputs(
            f"{type(module).__name__}.forward takes no '{wrong[0]}'; it takes "
            f"{', '.join(parameters)}."
        )


def vocabulary(module: nn.Module) -> int | None:
    """Rows of the module's first embedding, None when it has none."""
    tables = (m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding))
    return next(tables, None)


def describe(batch: Batch) -> str:
    """`input_ids=int64[1,128], ...` in the form that `--input` takes."""
    values = {**{f"args[{i}]": value for i, value in enumerate(batch.args)}, **batch.kwargs}
    return ", ".join(f"{name}={_described(value)}" for name, value in values.items()) or "none"


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        sizes = ",".join(map(str, value.shape))
        return f"{str(value.dtype).removeprefix('torch.')}[{sizes}]"
    return type(value).__name__


def _required(module: nn.Module) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(module.forward).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind in kinds]


def _guess(
    module: nn.Module, name: str, options: SourceOptions, *, alone: bool
) -> InputSpec | None:
    """By the parameter's name, else, for a single parameter, by the first layer with weights."""
    batch, seq = options.batch or 1, options.seq or _DEFAULT_SEQ
    real = str(floating_dtype(module) or torch.float32).removeprefix("torch.")
    if "mask" in name or (_IDS.search(name) and vocabulary(module) is not None):
        return InputSpec(name, "int64", (batch, seq))
    side = options.image or _DEFAULT_IMAGE
    if _IMAGE.search(name):
        conv = next((m for m in module.modules() if isinstance(m, nn.Conv2d)), None)
        channels = conv.in_channels if conv is not None else 3
        return InputSpec(name, real, (batch, channels, side, side))
    first = next((m for m in module.modules() if _shaped_by(m)), None) if alone else None
    if isinstance(first, nn.Embedding):
        return InputSpec(name, "int64", (batch, seq))
    if isinstance(first, nn.Linear):
        middle = () if options.seq is None else (options.seq,)
        return InputSpec(name, real, (batch, *middle, first.in_features))
    if isinstance(first, nn.LayerNorm):
        return InputSpec(name, real, (batch, seq, *first.normalized_shape))
    if isinstance(first, nn.Conv2d):
        return InputSpec(name, real, (batch, first.in_channels, side, side))
    if isinstance(first, nn.Conv1d):
        return InputSpec(name, real, (batch, first.in_channels, seq))
    return None


def _shaped_by(module: nn.Module) -> bool:
    return isinstance(module, (nn.Embedding, nn.Linear, nn.LayerNorm, nn.Conv2d, nn.Conv1d))
