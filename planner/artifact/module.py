"""The modules an artifact loads as: the packaged program, and the fused one that falls back to
it.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.export import ExportedProgram

from planner.artifact.errors import InferenceOnly
from planner.artifact.unfused import UnfusedProgram
from planner.fusion.module import FusedModule


class PackagedModule(nn.Module):
    """Stands for the original module: its weights under their names, and the unfused program.

    `call_signature` is the original forward's. Raises `OutsideRange` for a call that the program
    was not exported for.
    """

    def __init__(self, signature: inspect.Signature | None) -> None:
        super().__init__()
        self.call_signature = signature

    def hold(self, program: ExportedProgram) -> None:
        """Run this program; the weights that it names must be there."""
        self._unfused = UnfusedProgram(self, program)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._unfused.run(self._unfused.leaves(args, kwargs))

    def require_taken(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raises `OutsideRange` for a call that forward would not take."""
        self._unfused.leaves(args, kwargs)

    def move_constants(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Do to the program's constants what was done to the weights."""
        self._unfused.apply(fn)

    def __deepcopy__(self, memo: dict[int, Any]) -> PackagedModule:
        other = PackagedModule(self.call_signature)
        memo[id(self)] = other
        own = {name: value for name, value in vars(self).items() if name not in _SHARED}
        vars(other).update(copy.deepcopy(own, memo))
        other._unfused = self._unfused.on(other)
        return other


_SHARED = ("_unfused", "call_signature")


class LoadedModule(FusedModule):
    """A module from an artifact. It falls back to the packaged program without kernels, which has
    the captured shapes only; there is no original module and no training.
    """

    _OTHERWISE = "the packaged program without kernels"

    def train(self, mode: bool = True) -> LoadedModule:
        if mode:
            raise InferenceOnly(
                "A loaded artifact is for inference: it holds no program for training mode. Train "
                "the original model, then fuse and save it again."
            )
        super().train(mode)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> LoadedModule:
        super()._apply(fn, recurse)
        self._twin.move_constants(fn)
        return self

    def _require_taken(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._twin.require_taken(args, kwargs)
