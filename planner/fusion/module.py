"""The module a user gets back: same call, same outputs, same state_dict keys, running the fused
program.

It shares parameters with the user's module as torch.compile's wrapper does; buffers that the
forward changes are its own. Whenever the captured program does not apply - other shapes, dtypes,
devices or strides, training mode, autocast, gradients, a replaced submodule - it runs the
original program, says so once, and counts it in `fallbacks`.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any, NoReturn, SupportsIndex

from torch import Tensor, nn
from torch.export import ExportedProgram

from planner.errors import FuseplanError
from planner.fusion.program import BoundProgram
from planner.report.model import Report

# What nn.Module keeps of the tree; a fused module holds its twin's.
_OF_TWIN = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


class NotPicklable(FuseplanError):
    """A fused module holds operators of this process."""


class FusedModule(nn.Module):
    """Runs the fused program where its guards hold, the original elsewhere.

    `report` and `plan` tell what was done; `fallbacks` counts calls that ran the original. A deep
    copy has weights of its own and runs the same kernels.
    """

    report: Report
    plan: Any
    _twin: Any

    def __init__(self, twin: nn.Module, program: ExportedProgram | None) -> None:
        super().__init__()
        self._adopt(twin)
        self.training = twin.training
        self.fallbacks = 0
        self._warned = False
        self._program = None if program is None else BoundProgram(twin, program)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._program is None:
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

    def train(self, mode: bool = True) -> FusedModule:
        self._twin.training = mode
        super().train(mode)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> FusedModule:
        twin = copy.deepcopy(self._twin, memo)
        other = FusedModule(twin, None)
        memo[id(self)] = other
        shared = ("_twin", "_program", "report", "plan", *_OF_TWIN)
        for name, value in self.__dict__.items():
            if name in ("report", "plan"):
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
        self.fallbacks += 1
        if not self._warned:
            self._warned = True
            reason = self.refusal(args, kwargs)
            warnings.warn(
                f"fuseplan runs the original program: {reason}. Further such calls are only "
                "counted, in `.fallbacks`.",
                stacklevel=5,
            )
        return self._twin(*args, **kwargs)
