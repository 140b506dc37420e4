"""A cheap repeat of a kernel launch: what the launcher worked out once is kept for equal inputs.

An emitted launcher checks layouts, allocates, and goes through Triton's argument binder: about 30
us of Python a call, more than most kernels of a small batch take. A repeat with the same shapes,
strides and dtypes, all pointers aligned as before, starts the same compiled kernel with the same
sizes on new outputs. On CUDA it calls what Triton's own start calls in the end, with addresses
instead of tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

_ALIGNMENT = 16
"""Triton compiles a variant for pointers that this many bytes divide."""
_MOST = 512
"""Launches of one kernel that are kept."""


class RepeatedLaunch:
    """Calls `launcher`, an emitted launcher whose kernel is `module.<kernel>`; repeats are cheap.

    Falls back to the launcher whenever a repeat would not be the same launch: another layout, an
    unaligned pointer, an empty output, operands that had to be copied, one memory in two places.
    """

    def __init__(self, launcher: Callable[..., Any], module: Any, kernel: str) -> None:
        self._launcher = launcher
        self._recorder = _Recorder(getattr(module, kernel))
        setattr(module, kernel, self._recorder)
        self._known: dict[Any, Recorded | None] = {}

    def __call__(self, *tensors: Tensor) -> Any:
        key = _key(tensors)
        recorded = self._known.get(key, _UNSEEN)
        repeated = recorded.repeat(tensors) if isinstance(recorded, Recorded) else None
        if repeated is not None:
            return repeated
        result = self._launcher(*tensors)
        launch = self._recorder.take()
        if recorded is _UNSEEN and _aligned(tensors):
            keep(self._known, key, _record(launch, tensors, result))
        return result

    def recorded(self, *tensors: Tensor) -> Recorded | None:
        """The launch kept for inputs like these, None when there is none to repeat."""
        found = self._known.get(_key(tensors))
        return found if isinstance(found, Recorded) else None


def keep(known: dict[Any, Any], key: Any, value: Any) -> None:
    """Put it into the dictionary, which forgets all when it has grown large: a server whose sizes
    never repeat must not fill its memory with launches.
    """
    if len(known) >= _MOST:
        known.clear()
    known[key] = value


_UNSEEN: Any = object()


def _key(tensors: tuple[Tensor, ...]) -> Any:
    return tuple([(t.shape, t.stride(), t.dtype, t.device) for t in tensors])


@dataclass(frozen=True, slots=True)
class Recorded:
    """One launch with holes. `start` is the compiled kernel on its grid; it takes `arguments`, in
    which `holes` are positions with the number of the operand that belongs there, inputs first:
    the tensor, or its address with `by_address`. `strides` are those of the inputs, `outputs` the
    form of each output, which `make` allocates.
    """

    start: Callable[..., object]
    by_address: bool
    arguments: tuple[Any, ...]
    holes: tuple[tuple[int, int], ...]
    strides: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[tuple[int, ...], tuple[int, ...], torch.dtype], ...]
    make: Callable[..., Tensor]
    single: bool

    def repeat(self, inputs: tuple[Tensor, ...]) -> Any:
        """Start the kernel on these inputs, of the recorded shapes and dtypes, and new outputs.
        None where they do not lie as the compiled kernel needs them.
        """
        addresses = [tensor.data_ptr() for tensor in inputs]
        for tensor, stride, address in zip(inputs, self.strides, addresses, strict=True):
            if address % _ALIGNMENT or tensor.stride() != stride:
                return None
        made = [self.make(shape, stride, dtype) for shape, stride, dtype in self.outputs]
        operands: list[Any] = [*inputs, *made]
        if self.by_address:
            operands = [*addresses, *[tensor.data_ptr() for tensor in made]]
        arguments = list(self.arguments)
        for position, number in self.holes:
            arguments[position] = operands[number]
        self.start(*arguments)
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


def _record(launch: Any, inputs: tuple[Tensor, ...], result: Any) -> Recorded | None:
    """The launch as something to repeat, or None when an operand is neither input nor output.

    Operands are told by where they lie: a kernel gets a permuted view by its pointer, and sizes
    and strides as numbers.
    """
    if launch is None:
        return None
    grid, args, kwargs, compiled = launch
    outputs = (result,) if isinstance(result, Tensor) else tuple(result)
    numbers = {t.data_ptr(): number for number, t in enumerate((*inputs, *outputs))}
    if len(numbers) < len(inputs) + len(outputs):
        return None
    if any(isinstance(arg, Tensor) and arg.data_ptr() not in numbers for arg in args):
        return None
    holes = {n: numbers[arg.data_ptr()] for n, arg in enumerate(args) if isinstance(arg, Tensor)}
    constexprs = [value for name, value in kwargs.items() if name != "num_warps"]
    start = _from_address(compiled, (*grid, 1, 1)[:3])
    return Recorded(
        start=start or compiled[(*grid, 1, 1)[:3]],
        by_address=start is not None,
        arguments=(*(None if n in holes else arg for n, arg in enumerate(args)), *constexprs),
        holes=tuple(holes.items()),
        strides=tuple(t.stride() for t in inputs),
        outputs=tuple((tuple(t.shape), t.stride(), t.dtype) for t in outputs),
        make=_maker(outputs[0].device),
        single=isinstance(result, Tensor),
    )


def _maker(device: torch.device) -> Callable[..., Tensor]:
    """Allocates a tensor of a shape, stride and dtype; on CUDA as Inductor's code does, in half
    the time of torch.empty_strided.
    """
    if device.type == "cuda" and device.index == torch.cuda.current_device():
        quick: Callable[..., Tensor] | None = getattr(
            torch._C._dynamo.guards, "_empty_strided_cuda", None
        )
        if quick is not None:
            return quick
    return partial(_empty_on, device)


def _empty_on(
    device: torch.device, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype, device=device)


def _from_address(compiled: Any, grid: tuple[int, int, int]) -> Callable[..., object] | None:
    """Starts a compiled CUDA kernel on the current stream with addresses in the place of tensors;
    None for any other. Leaves out the hooks that Triton calls before and after.
    """
    if not torch.cuda.is_available() or torch.version.hip or not hasattr(compiled, "run"):
        return None
    run, function, packed = compiled.run, compiled.function, compiled.packed_metadata
    current, stream_of = torch._C._cuda_getDevice, torch._C._cuda_getCurrentRawStream

    def start(*arguments: Any) -> None:
        run(*grid, stream_of(current()), function, packed, None, None, None, *arguments)

    return start


def _aligned(tensors: tuple[Tensor, ...]) -> bool:
    return all(t.data_ptr() % _ALIGNMENT == 0 for t in tensors)
