"""What a MODEL text stands for once loaded: the module, the inputs to run it with, and notes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class Batch:
    """The arguments of one forward, and how often it occurs beside the others (any positive
    scale).
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Subject:
    """A module in eval mode on its device, with one batch to run and all batches it was given.

    `name` is the MODEL text. `args` and `kwargs` are those of the batch with the largest weight;
    `batches` holds every one in the order given. `notes` say what was chosen on the user's
    behalf; `advice` is what to try where the inputs made turn out not to fit, "" where nothing is
    known.
    """

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    batches: tuple[Batch, ...]
    notes: tuple[str, ...] = ()
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Built:
    """What one kind of source hands on: the module, and its inputs when the source knows them.

    `batch` is None when the source gives no inputs and they are to be read or made.
    """

    module: nn.Module
    batch: Batch | None
    notes: tuple[str, ...] = ()
