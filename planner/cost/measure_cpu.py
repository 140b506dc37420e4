"""Ceilings of this CPU, measured with torch's present number of threads."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import TYPE_CHECKING

from planner.cost.devices import Claim, Device, Source
from planner.timing import now_s, time_once_us

if TYPE_CHECKING:
    import torch

# Far over any last-level cache a copy could stay in; 0.5 GB with source and target.
_COPY_ELEMENTS = 64 * 1024**2
_MATRIX = 1024
_OVERHEAD_CALLS = 100


def measure_cpu(seconds: float = 0.5) -> Device:
    """A `Device` with measured copy GB/s (read plus write), float32 and bfloat16 matrix TFLOP/s
    and the time of one tiny operator.

    Each ceiling is the best of the samples that fit in its part of `seconds` (at least two). A
    copy's target is written before it is timed, so that no page is touched for the first time.
    """
    import torch

    threads = torch.get_num_threads()
    with torch.inference_mode():
        claims = {
            "bandwidth_gbs": (_bandwidth(seconds / 3, threads),),
            "peak_tflops.float32": (_peak(torch.float32, seconds / 3, threads),),
            "peak_tflops.bfloat16": (_peak(torch.bfloat16, seconds / 3, threads),),
            "launch_overhead_us": (_overhead(threads),),
        }
    return Device("cpu", f"this CPU with {threads} threads", ("cpu",), claims)


def _bandwidth(seconds: float, threads: int) -> Claim:
    import torch

    source = torch.ones(_COPY_ELEMENTS)
    target = torch.zeros(_COPY_ELEMENTS)
    best_us = _best_us(lambda: target.copy_(source), seconds)
    moved_bytes = 2 * source.nbytes
    return _claim(
        moved_bytes / best_us / 1e3, f"copy of {source.nbytes / 1e6:.0f} MB of float32", threads
    )


def _peak(dtype: torch.dtype, seconds: float, threads: int) -> Claim:
    import torch

    own = torch.Generator().manual_seed(0)  # the user's random state stays as it is
    left, right = (torch.randn(_MATRIX, _MATRIX, generator=own).to(dtype) for _ in range(2))
    best_us = _best_us(lambda: left @ right, seconds)
    label = f"{_MATRIX} x {_MATRIX} x {_MATRIX} matrix product in {str(dtype).rsplit('.', 1)[-1]}"
    return _claim(2 * _MATRIX**3 / best_us / 1e6, label, threads)


def _overhead(threads: int) -> Claim:
    import torch

    one = torch.ones(1)

    def calls() -> None:
        for _ in range(_OVERHEAD_CALLS):
            torch.add(one, one)

    return _claim(_best_us(calls, 0.01) / _OVERHEAD_CALLS, "add of one element", threads)


def _best_us(call: Callable[[], object], seconds: float) -> float:
    """The shortest of at least two samples after one warm-up."""
    call()
    started = now_s()
    best = time_once_us(call, "cpu")
    while True:
        best = min(best, time_once_us(call, "cpu"))
        if now_s() - started > seconds:
            return best


def _claim(value: float, what: str, threads: int) -> Claim:
    ref = f"{what}, best of several, {threads} threads"
    return Claim(value, Source("measured", ref, date.today().isoformat()))
