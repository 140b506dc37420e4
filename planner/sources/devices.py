"""Device text -> a device that is really there, or an error that says what is missing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from planner.errors import EnvironmentLacks
from planner.sources.options import BadOption

if TYPE_CHECKING:
    import torch

_FORM = re.compile(r"cpu|cuda(:(?P<index>\d+))?")


class DeviceMissing(EnvironmentLacks):
    """The device asked for is not on this machine, or this torch cannot drive it."""


def resolve_device(text: str) -> torch.device:
    """The torch device that `cpu`, `cuda` or `cuda:N` names.

    Raises `BadOption` for any other text and `DeviceMissing` when there is no such device here.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise BadOption(f"--device '{text}' is not known; use cpu, cuda or cuda:N.")
    import torch

    if text == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        why = (
            f"this torch ({torch.__version__}) is built without CUDA"
            if torch.version.cuda is None
            else "torch finds no CUDA device or driver"
        )
        raise DeviceMissing(f"--device {text}: {why}. Use --device cpu, or a machine with one.")
    count = torch.cuda.device_count()
    index = int(found["index"] or 0)
    if index >= count:
        raise DeviceMissing(
            f"--device {text}: there are {count} CUDA devices here, cuda:0 to cuda:{count - 1}."
        )
    return torch.device("cuda", index)
