"""A cheap repeat of a kernel launch: what the launcher worked out once is kept for equal inputs.

An emitted launcher checks layouts, allocates, and goes through Triton's argument binder: about 30
us of Python a call, more than most kernels of a small batch take. A repeat with the same shapes,
strides and dtypes, all pointers aligned as before, starts the same compiled kernel with the same
sizes on new outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_ALIGNMENT = 16
"""Triton compiles a variant for pointers that this many bytes divide."""


class RepeatedLaunch:
    """Calls `launcher`, an emitted launcher whose kernel is `module.<kernel>`; repeats are cheap.

    Falls back to the launcher whenever a repeat would not be the same launch: another layout, an
    unaligned pointer, an empty output, operands that had to be copied, a profiling hook.
    """

    def __init__(self, launcher: Callable[..., Any], module: Any, kernel: str) -> None:
        self._launcher = launcher
        self._recorder = _Recorder(getattr(module, kernel))
        setattr(module, kernel, self._recorder)
        self._known: dict[Any, _Recorded | None] = {}

    def __call__(self, *tensors: Tensor) -> Any:
        key = tuple([(t.shape, t.stride(), t.dtype, t.device) for t in tensors])
        recorded = self._known.get(key, _UNSEEN)
        if isinstance(recorded, _Recorded) and _aligned(tensors):
            return recorded.repeat(tensors)
        result = self._launcher(*tensors)
        if recorded is _UNSEEN and _aligned(tensors):
            self._known[key] = _record(self._recorder.take(), tensors, result)
        return result


_UNSEEN: Any = object()


@dataclass(frozen=True, slots=True)
class _Recorded:
    """One launch with holes: `arguments` holds indices into inputs and outputs, or plain
    values.
    """

    compiled: Any
    grid: tuple[int, int, int]
    arguments: tuple[tuple[str, Any], ...]
    outputs: tuple[tuple[torch.Size, torch.dtype], ...]
    device: torch.device
    single: bool

    def repeat(self, inputs: tuple[Tensor, ...]) -> Any:
        made = [
            torch.empty(shape, dtype=dtype, device=self.device) for shape, dtype in self.outputs
        ]
        pools = {"input": inputs, "output": made}
        arguments = [
            value if kind == "value" else pools[kind][value] for kind, value in self.arguments
        ]
        self.compiled[self.grid](*arguments)
        return made[0] if self.single else tuple(made)


class _Recorder:
    """Stands in for a jitted kernel and remembers its last launch."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._last: tuple[Any, tuple[Any, ...], dict[str, Any], Any] | None = None

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        def launch(*args: Any, **kwargs: Any) -> Any:
            compiled = self.kernel[grid](*args, **kwargs)
            self._last = (grid, args, kwargs, compiled)
            return compiled

        return launch

    def take(self) -> Any:
        """The last launch, once."""
        last, self._last = self._last, None
        return last


def _record(launch: Any, inputs: tuple[Tensor, ...], result: Any) -> _Recorded | None:
    """The launch as something to repeat, or None when an operand is neither input nor output."""
    if launch is None:
        return None
    grid, args, kwargs, compiled = launch
    outputs = (result,) if isinstance(result, Tensor) else tuple(result)
    positions = {id(t): ("output", i) for i, t in enumerate(outputs)}
    positions |= {id(t): ("input", i) for i, t in enumerate(inputs)}
    if any(isinstance(arg, Tensor) and id(arg) not in positions for arg in args):
        return None
    if not all(output.is_contiguous() for output in outputs):
        return None
    arguments = [positions.get(id(arg), ("value", arg)) for arg in args]
    constexprs = [("value", value) for name, value in kwargs.items() if name != "num_warps"]
    return _Recorded(
        compiled=compiled,
        grid=tuple([*grid, 1, 1][:3]),
        arguments=(*arguments, *constexprs),
        outputs=tuple((t.shape, t.dtype) for t in outputs),
        device=outputs[0].device,
        single=isinstance(result, Tensor),
    )


def _aligned(tensors: tuple[Tensor, ...]) -> bool:
    return all(t.data_ptr() % _ALIGNMENT == 0 for t in tensors)
