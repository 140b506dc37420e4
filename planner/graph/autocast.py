"""The autocast around a capture: a program has its casts written out, so that it holds under the
same autocast alone, and runs without any.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

_KEY = "autocast"
_REGION = torch.ops.higher_order.wrap_with_autocast


@dataclass(frozen=True, slots=True)
class Autocast:
    """What autocast had to do with a capture.

    `dtype` is that of the autocast which was on around the forward, None for none ("bfloat16").
    `regions` tells that the forward enters or leaves autocast by itself.
    """

    dtype: str | None = None
    regions: bool = False


NO_AUTOCAST = Autocast()


def ambient_dtype(device_type: str) -> str | None:
    """The dtype that autocast brings operators of this kind of device to now; None when off."""
    if not _has_autocast(device_type) or not torch.is_autocast_enabled(device_type):
        return None
    return str(torch.get_autocast_dtype(device_type)).removeprefix("torch.")


@contextmanager
def without_autocast() -> Iterator[None]:
    """Operators run in the dtypes that they are given, whatever autocast is on around this."""
    with torch._C._DisableAutocast():
        yield


def autocast_around(program: ExportedProgram, module: nn.Module, call: object) -> Autocast:
    """What autocast has to do with `program`, fresh from torch.export and not yet decomposed, of
    `module` for the arguments in `call`.
    """
    leaves = [*module.parameters(), *module.buffers(), *pytree.tree_leaves(call)]
    kind = next((leaf.device.type for leaf in leaves if isinstance(leaf, Tensor)), "cpu")
    parts = [p for p in program.graph_module.modules() if isinstance(p, fx.GraphModule)]
    regions = any(node.target is _REGION for part in parts for node in part.graph.nodes)
    return Autocast(ambient_dtype(kind), regions)


def note_autocast(program: ExportedProgram, autocast: Autocast) -> None:
    """Let the program remember it; copies of its graph do too."""
    program.graph_module.meta[_KEY] = autocast


def autocast_of(program: ExportedProgram) -> Autocast:
    """What autocast had to do with the capture of this program."""
    found: Autocast = program.graph_module.meta.get(_KEY, NO_AUTOCAST)
    return found


def refused_autocast(captured: Autocast, device_type: str) -> str:
    """Why the program does not hold under the autocast that is on now; "" where it does."""
    now = ambient_dtype(device_type)
    if now == captured.dtype:
        return ""
    if captured.dtype is None:
        return "autocast is on, the program was captured without"
    said = "off" if now is None else f"to {now}"
    return f"autocast is {said}, the program was captured under autocast to {captured.dtype}"


@cache
def _has_autocast(device_type: str) -> bool:
    return torch.amp.is_autocast_available(device_type)
