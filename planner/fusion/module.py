"""The module a user gets back: same call, same outputs, same state_dict keys, running the fused
program.

It shares parameters with the user's module as torch.compile's wrapper does; buffers that the
forward changes are its own. Whenever the captured program does not apply - other shapes, dtypes,
devices or strides, training mode, another autocast, gradients of inputs or weights, transforms of
torch.func, a replaced submodule - it runs the original program, says so once, and counts it in
`fallbacks`.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, SupportsIndex

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from planner.errors import FuseplanError
from planner.fusion.program import BoundProgram
from planner.report.model import Report

# What nn.Module keeps of the tree; a fused module holds its twin's.
_OF_TWIN = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


class NotPicklable(FuseplanError):
    """A fused module holds operators of this process."""


@dataclass(frozen=True, slots=True)
class Packable:
    """What an artifact is made of: the program without kernels, and the one with them where that
    is what runs. `reason` says why there is nothing to save, "" where there is.
    """

    unfused: ExportedProgram | None
    fused: ExportedProgram | None = None
    reason: str = ""


class FusedModule(nn.Module):
    """Runs the fused program where its guards hold, the original elsewhere.

    `report` and `plan` tell what was done; `fallbacks` counts calls that ran the original. A deep
    copy has weights of its own and runs the same kernels. Within torch.compile it is the original
    module that is compiled: kernels that write over an input cannot be traced.
    """

    report: Report
    plan: Any
    packable = Packable(None, reason="it was not made by planner.fuse")
    _twin: Any
    _OTHERWISE: ClassVar = "the original program"

    def __init__(self, twin: nn.Module, program: ExportedProgram | None) -> None:
        super().__init__()
        self._adopt(twin)
        self.training = twin.training
        self.fallbacks = 0
        self._warned = False
        self._program = None if program is None else BoundProgram(twin, program)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._program is None or torch.compiler.is_dynamo_compiling():
            return self._twin(*args, **kwargs)
        leaves = None if self.training else self._program.leaves(args, kwargs)
        if leaves is None:
            return self._fall_back(args, kwargs)
        return self._program.run(leaves)

    @property
    def fused(self) -> bool:
        """Whether generated kernels run where the guards hold."""
        return self._program is not None and self._program.has_kernels

    @property
    def extra_weight_bytes(self) -> int:
        """What folded and packed weights take beside the module's own."""
        return 0 if self._program is None else self._program.extra_weight_bytes

    @property
    def code(self) -> str:
        """The program that runs as Python text; "" where it is the original module."""
        return "" if self._program is None else self._program.code

    def refusal(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Why this call would run the original program; "" when the fused one would run."""
        if self.training:
            return "it is in training mode"
        return "" if self._program is None else self._program.refusal(args, kwargs)

    def refused_state(self) -> str:
        """What has changed on the module since the capture; "" when the program still fits it."""
        return "" if self._program is None else self._program.refused_state()

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the module to `path`, a .pt2 file that `planner.load` reads in another process.

        It holds the program, the program without kernels to fall back to, the weights once, as
        they are now, and the kernels' sources. Where nothing was fused it holds the captured
        program without kernels, also where that did not win against eager and this module runs
        the original: Python code is not packaged.

        Raises `NotSaved` when the module has no sound program, a weight is not as captured, or
        the file cannot be written or is there already and `force` is off.
        """
        from planner.artifact.save import save  # imports this file

        save(self, path, force=force)

    def train(self, mode: bool = True) -> FusedModule:
        self._twin.training = mode
        super().train(mode)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> FusedModule:
        twin = copy.deepcopy(self._twin, memo)
        other = type(self)(twin, None)
        memo[id(self)] = other
        shared = ("_twin", "_program", *_OF_TWIN)
        for name, value in self.__dict__.items():
            if name in ("report", "plan", "packable"):
                other.__dict__[name] = value
            elif name not in shared:
                other.__dict__[name] = copy.deepcopy(value, memo)
        other._program = None if self._program is None else self._program.on(twin)
        return other

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise NotPicklable(
            "A fused module cannot be pickled: its kernels are operators of this process. Keep "
            "its state_dict() and fuse again, or copy it with copy.deepcopy."
        )

    def _adopt(self, twin: nn.Module) -> None:
        """Put the twin's own parameters, buffers and children in this module's place. The twin
        itself is not registered: its names would all be there twice.
        """
        self.__dict__["_twin"] = twin
        for name in _OF_TWIN:
            self.__dict__[name] = getattr(twin, name)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> FusedModule:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self._program is not None:
            self._program.apply(fn)
        return self

    def _fall_back(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._require_taken(args, kwargs)
        self.fallbacks += 1
        if not self._warned:
            self._warned = True
            reason = self.refusal(args, kwargs)
            warnings.warn(
                f"fuseplan runs {self._OTHERWISE}: {reason}. Further such calls are only "
                "counted, in `.fallbacks`.",
                stacklevel=5,
            )
        return self._twin(*args, **kwargs)

    def _require_taken(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise where the fallback does not take the call either. An original says so itself."""
