"""The one device that a model and its inputs lie on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from planner.errors import FuseplanError
from planner.graph.containers import register_containers


class WrongDevice(FuseplanError):
    """The model does not lie where it is to be planned for."""


def device_of(module: nn.Module, args: Any, kwargs: Any, device: str | None) -> str:
    """The one device that weights and inputs lie on.

    Raises `WrongDevice` when there are several, or it is not the one asked for, and `CaptureFailed`
    for inputs that hold a container of no known form.
    """
    register_containers((args, kwargs))
    tensors = [*module.parameters(), *module.buffers(), *pytree.tree_leaves((args, kwargs))]
    found = sorted({str(t.device) for t in tensors if isinstance(t, Tensor)})
    if len(found) > 1:
        raise WrongDevice(
            f"The model and its inputs lie on several devices ({', '.join(found)}). "
            "Move them to one before planning."
        )
    actual = found[0] if found else device or "cpu"
    if device and not is_on(torch.device(actual), torch.device(device)):
        raise WrongDevice(
            f"The model lies on {actual}, not on {device}. Move the model and its inputs there "
            f"first: model.to('{device}')."
        )
    _require_current(torch.device(actual))
    return actual


def _require_current(device: torch.device) -> None:
    """Kernels start on the current CUDA device; another one would not hold the model's tensors."""
    if device.type != "cuda" or device.index in (None, torch.cuda.current_device()):
        return
    current = f"cuda:{torch.cuda.current_device()}"
    raise WrongDevice(
        f"The model lies on {device}, but the current device is {current}. "
        f"Plan and run it under `with torch.cuda.device({device.index}):`."
    )


def is_on(actual: torch.device, wanted: torch.device) -> bool:
    """ "cuda" means any CUDA device, "cuda:1" that one."""
    return actual.type == wanted.type and wanted.index in (None, actual.index, actual.index or 0)
