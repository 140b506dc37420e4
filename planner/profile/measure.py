"""Measure a profile: run the eager module under the profiler and join what ran to the captured
graph.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from planner.cost.families import is_work, packet
from planner.graph.op_graph import OpGraph
from planner.profile.events import ITERATION, RANGE_PREFIX, Event, read_events
from planner.profile.join import NO_GRAPH, Joined, join
from planner.profile.model import Profile, ProfileRow, UnlinkedRow
from planner.profile.module_ranges import module_ranges
from planner.profile.tree import Iteration, iterations_of
from planner.profile.untouched import fresh_inputs, restored
from planner.timing import Timing, time_once_us

_WARM_UP = RANGE_PREFIX + "warm-up"
# Beyond this ratio of wall time to device time the device mostly waits for the host.
_HOST_BOUND_RATIO = 1.5


def measure(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    graph: OpGraph,
    device: str,
    *,
    removed: OpGraph = NO_GRAPH,
    iterations: int = 10,
    warmup: int = 3,
) -> Profile:
    """Times of the operators that `module(*args, **kwargs)` really runs, joined to `graph`.

    `module` and tensors are on `device` ("cpu", "cuda", "cuda:1") already; on CUDA the times are
    those of kernels, copies and fills. `removed` holds nodes that the graph has lost. Runs
    without autograd, on copies of the inputs; mode, buffers, hooks and random state are
    afterwards as before. Raises what the forward raises, and `CannotCopyInputs`.
    """
    if iterations < 1:
        raise ValueError("iterations must be at least 1")
    on_device = device.startswith("cuda")
    with torch.no_grad(), restored(module, device):
        wall = _wall(module, args, kwargs, device, iterations, warmup)
        events = _record(module, args, kwargs, on_device, iterations)
    return profile_of(events, graph, device, wall, removed)


def profile_of(
    events: Sequence[Event],
    graph: OpGraph,
    device: str,
    wall: Timing,
    removed: OpGraph = NO_GRAPH,
) -> Profile:
    """The profile that recorded events amount to. They hold at least one iteration."""
    on_device = device.startswith("cuda")
    runs = iterations_of(events)
    joined = [join(run, graph, on_device=on_device, removed=removed) for run in runs]
    ran = {name for one in joined for name in one.by_node}
    profiled = Timing(tuple(run.range.duration_us for run in runs))
    device_us = statistics.median(_total_us(one) for one in joined)
    return Profile(
        device=device,
        iterations=len(runs),
        wall=wall,
        profiled_wall=profiled,
        rows=_rows(graph, joined, ran),
        unlinked=_by_name([one.unlinked for one in joined]),
        not_run=tuple(node.name for node in graph if is_work(node) and node.name not in ran),
        module_calls=_module_calls(runs[-1]),
        note=_pace_note(wall.median_us, device_us) if on_device else "",
        removed=_by_name([_by_operator(one.removed, removed) for one in joined]),
    )


def _wall(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    device: str,
    iterations: int,
    warmup: int,
) -> Timing:
    samples: list[float] = []
    for index in range(warmup + iterations):
        own_args, own_kwargs = fresh_inputs(args, kwargs)
        sample = time_once_us(_call(module, own_args, own_kwargs), device)
        if index >= warmup:
            samples.append(sample)
    return Timing(tuple(samples))


def _record(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    on_device: bool,
    iterations: int,
) -> tuple[Event, ...]:
    """Events of one warm-up forward (the profiler's own first use is slow) and the iterations."""
    activities = [ProfilerActivity.CPU]
    if on_device:
        activities.append(ProfilerActivity.CUDA)
    with module_ranges(module), profile(activities=activities, record_shapes=True) as recorded:
        for name in (_WARM_UP, *(ITERATION for _ in range(iterations))):
            own_args, own_kwargs = fresh_inputs(args, kwargs)
            if on_device:
                torch.cuda.synchronize()
            with record_function(name):
                module(*own_args, **own_kwargs)
                if on_device:
                    torch.cuda.synchronize()
    return read_events(recorded.profiler.kineto_results.events())


def _call(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], object]:
    return lambda: module(*args, **kwargs)


def _rows(graph: OpGraph, joined: Sequence[Joined], ran: set[str]) -> tuple[ProfileRow, ...]:
    rows: list[ProfileRow] = []
    for key, nodes in graph.by_key().items():
        names = tuple(node.name for node in nodes if node.name in ran)
        if names:
            samples = tuple(sum(one.by_node.get(name, 0.0) for name in names) for one in joined)
            rows.append(ProfileRow(key, names, len(names), Timing(samples)))
    return tuple(rows)


def _by_operator(by_node: Mapping[str, float], graph: OpGraph) -> dict[str, float]:
    times: dict[str, float] = {}
    for node in graph:
        if node.name in by_node:
            name = packet(node.op)
            times[name] = times.get(name, 0.0) + by_node[node.name]
    return times


def _by_name(runs: Sequence[Mapping[str, float]]) -> tuple[UnlinkedRow, ...]:
    """Longest first."""
    names = dict.fromkeys(name for run in runs for name in run)
    rows = [UnlinkedRow(name, Timing(tuple(run.get(name, 0.0) for run in runs))) for name in names]
    return tuple(sorted(rows, key=lambda row: -row.timing.median_us))


def _total_us(joined: Joined) -> float:
    return sum(joined.by_node.values()) + sum(joined.unlinked.values())


def _pace_note(wall_us: float, device_us: float) -> str:
    """Says when the device mostly waits for the host."""
    if wall_us <= _HOST_BOUND_RATIO * device_us:
        return ""
    return (
        f"the host sets the pace: one forward takes {wall_us:.0f} us, its device work "
        f"{device_us:.0f} us; launching fewer kernels helps more than faster ones"
    )


def _module_calls(run: Iteration) -> tuple[tuple[str, int], ...]:
    counts: dict[str, int] = {}
    for root in run.calls:
        for call in root.walk():
            path = call.event.module_path
            if path is not None:
                counts[path] = counts.get(path, 0) + 1
    return tuple(counts.items())
