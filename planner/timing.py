"""The only file that reads a clock or a device event: interleaved samples, medians, and who wins.

A comparison is made of things run in one process, in turn, so that a drifting clock or a busy
neighbour meets all of them alike. All times are microseconds.
"""

from __future__ import annotations

import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["wins", "not slower", "slower"]
Pace = Literal["host", "device"]
"""Which of the two the other waits for."""

_BOOTSTRAP_DRAWS = 2000
_INTERVAL = 0.95
_SAMPLE_US = 500.0
_MOST_REPEATS = 50
_HOST_SHARE = 0.8
"""Of a forward's time; a host that is busy for less of it runs ahead of the device."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Samples of one thing, in order taken, microseconds."""

    samples_us: tuple[float, ...]

    @property
    def median_us(self) -> float:
        return statistics.median(self.samples_us)

    @property
    def p20_us(self) -> float:
        return percentile(self.samples_us, 0.2)

    @property
    def p80_us(self) -> float:
        return percentile(self.samples_us, 0.8)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Baseline time over candidate time, pair by pair: the median ratio and its bootstrap 95 %
    interval.
    """

    ratio: float
    low: float
    high: float

    @property
    def verdict(self) -> Verdict:
        """`wins` when the interval lies above 1, `slower` when it lies below, else `not
        slower`.
        """
        if self.low > 1.0:
            return "wins"
        return "not slower" if self.high >= 1.0 else "slower"


def percentile(samples: Sequence[float], fraction: float) -> float:
    """The `fraction` quantile with linear interpolation between order statistics."""
    ordered = sorted(samples)
    position = fraction * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def now_s() -> float:
    """Monotonic host time in seconds, for durations that include compilation."""
    return time.perf_counter()


def interleaved(
    calls: Mapping[str, Callable[[], object]],
    device: str,
    *,
    rounds: int,
    warmup: int = 3,
    budget_s: float | None = None,
    pace: Pace = "host",
) -> dict[str, Timing]:
    """Time every call once a round, in turn, for `rounds` rounds or until `budget_s` seconds are
    spent.

    On CUDA a sample is the time between two device events around as many calls as take about half
    a millisecond, divided by their number: the host runs ahead of the device, as it does in a
    model, and a sample holds launch time only where the host sets the pace. With `pace` "device"
    the calls of a sample are one CUDA graph, which leaves out what the host does for them: right
    for parts of a model in which the device never waits for it. The order is drawn
    anew each round, so that no call always follows the same other one: after a long call the
    device's clock is lower, and in a fixed circle two equal programs differed by 5 % on an H200.
    At least five rounds are run.
    """
    for call in calls.values():
        for _ in range(warmup):
            call()
    names = list(calls)
    repeats = {name: _repeats(call, device) for name, call in calls.items()}
    take = _sampler(calls, device, repeats, pace)
    samples: dict[str, list[float]] = {name: [] for name in names}
    source = random.Random(0)
    started = now_s()
    for index in range(rounds):
        if budget_s is not None and index >= 5 and now_s() - started > budget_s:
            break
        for name in source.sample(names, len(names)):
            samples[name].append(take(name))
    return {name: Timing(tuple(values)) for name, values in samples.items()}


def time_once_us(call: Callable[[], object], device: str, repeats: int = 1) -> float:
    """Microseconds of one call, the mean of `repeats`: device events on CUDA, the host clock
    elsewhere.
    """
    import torch

    if device.startswith("cuda"):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        for _ in range(repeats):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3 / repeats
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - begin) * 1e6 / repeats


def _repeats(call: Callable[[], object], device: str) -> int:
    if not device.startswith("cuda"):
        return 1
    single_us = min(time_once_us(call, device) for _ in range(3))
    return max(1, min(_MOST_REPEATS, round(_SAMPLE_US / max(single_us, 1.0))))


def _sampler(
    calls: Mapping[str, Callable[[], object]],
    device: str,
    repeats: Mapping[str, int],
    pace: Pace,
) -> Callable[[str], float]:
    """What takes a sample of a call by its name, microseconds a call. A call that no CUDA graph can
    hold, since it waits for the device, has all timed with the host's part.
    """
    if pace == "device" and device.startswith("cuda"):
        try:
            graphs = {name: device_only(calls[name], device, repeats[name]) for name in calls}
        except RuntimeError:
            pass
        else:
            return lambda name: time_once_us(graphs[name], device) / repeats[name]
    return lambda name: time_once_us(calls[name], device, repeats[name])


def pace_of(call: Callable[[], object], device: str) -> Pace:
    """Whether the device has work left when the host has started all of a call's; on CPU they are
    one, "host". Runs the call eight times.
    """
    import torch

    if not device.startswith("cuda"):
        return "host"
    shares = []
    for _ in range(8):
        torch.cuda.synchronize(device)
        begin = now_s()
        call()
        started = now_s()
        torch.cuda.synchronize(device)
        shares.append((started - begin) / (now_s() - begin))
    return "device" if statistics.median(shares[3:]) < _HOST_SHARE else "host"


def device_only(call: Callable[[], object], device: str, repeats: int = 1) -> Callable[[], object]:
    """`repeats` calls captured in one CUDA graph, so that timing it leaves out the host's launches;
    elsewhere `call` itself. Runs it three times before. Raises RuntimeError, before anything is
    captured, where the call waits for the device.
    """
    import torch

    if not device.startswith("cuda"):
        return call
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.no_grad(), torch.cuda.stream(stream):
        call()
        # A capture that fails leaves allocator and random generator broken.
        with _no_waiting():
            call()
            call()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        for _ in range(repeats):
            call()
    replay: Callable[[], object] = graph.replay
    return replay


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Within it what waits for a CUDA device raises RuntimeError."""
    import torch

    earlier = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's, that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(earlier)


def compare(baseline: Timing, candidate: Timing, seed: int = 0) -> Comparison:
    """Bootstrap the median of the paired ratios baseline / candidate (2,000 draws, 95 %
    interval).
    """
    pairs = zip(baseline.samples_us, candidate.samples_us, strict=True)
    ratios = [before / after for before, after in pairs]
    source = random.Random(seed)
    medians = sorted(
        statistics.median(source.choices(ratios, k=len(ratios))) for _ in range(_BOOTSTRAP_DRAWS)
    )
    tail = (1.0 - _INTERVAL) / 2
    return Comparison(
        statistics.median(ratios), percentile(medians, tail), percentile(medians, 1.0 - tail)
    )
