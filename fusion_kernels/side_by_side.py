"""Compiles what several launches need at once, before the first of them runs.

Triton compiles a kernel when it is first launched with arguments of a kind: dtypes, numbers equal
to 1, numbers and addresses that 16 divides. One after another that takes some 0.2 s each, nearly
all of it in LLVM, ptxas and a C compiler, which run beside one another.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from fusion_kernels.load import KernelModule

_MOST_THREADS = 16


def compile_side_by_side(launches: Iterable[tuple[KernelModule, Sequence[Tensor]]]) -> None:
    """Compile each module's kernels for a call of its launcher with these tensors.

    Launchers run, and allocate their outputs, but nothing is launched, so the tensors need no
    values. A kernel that does not compile says so when it is launched, and so does a launcher that
    refuses its tensors. Without an `AsyncCompileMode` that goes on after a failure (before Triton
    3.6) everything is compiled at its launch.
    """
    import triton

    mode: Any = getattr(triton, "AsyncCompileMode", None)
    if mode is None or "ignore_errors" not in inspect.signature(mode).parameters:
        return
    with ThreadPoolExecutor(_threads()) as executor:
        compiled: list[tuple[torch.device, Any]] = []
        with mode(executor, ignore_errors=True):
            for loaded, tensors in launches:
                device = tensors[0].device if tensors else torch.device("cpu")
                compiled += [(device, kernel) for kernel in _warmed(loaded, tensors)]
        list(executor.map(_make_ready, compiled))


class _Warming:
    """Stands in for a jitted kernel: a launch compiles it and starts nothing."""

    def __init__(self, kernel: Any, compiled: list[Any]) -> None:
        self._kernel, self._compiled = kernel, compiled

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            self._compiled.append(self._kernel.warmup(*args, grid=grid, **kwargs))

        return launch


def _warmed(loaded: KernelModule, tensors: Sequence[Tensor]) -> list[Any]:
    """What Triton hands out for the kernels of one call, compiled or being compiled."""
    compiled: list[Any] = []
    entries = {name: kernel for name, kernel in loaded.kernels.items() if name.endswith("_kernel")}
    before = {name: getattr(loaded.module, name) for name in entries}
    for name, kernel in entries.items():
        setattr(loaded.module, name, _Warming(kernel, compiled))
    try:
        loaded.launcher(*tensors)
    except Exception:
        return []
    finally:
        for name, kernel in before.items():
            setattr(loaded.module, name, kernel)
    return compiled


def _make_ready(compiled: tuple[torch.device, Any]) -> None:
    """Load the binary, and have Triton 3.6 compile the launcher in C that it writes for each
    signature.
    """
    device, kernel = compiled
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            _ = kernel.run
    except Exception:
        return


def _threads() -> int:
    has_affinity = hasattr(os, "sched_getaffinity")
    processors = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return min(_MOST_THREADS, processors)
