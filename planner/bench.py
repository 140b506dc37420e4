"""The end-to-end race: eager, torch.compile, the captured program without kernels ("normalized")
and with them ("fused"), interleaved in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from planner.report.model import Benchmark, BenchmarkRow
from planner.timing import Comparison, Timing, compare, interleaved, now_s

Call = Callable[[], object]

EAGER, COMPILED, NORMALIZED, FUSED = "eager", "compile_default", "normalized", "fused"

_ROUNDS = 200
_BUDGET_S = 12.0


@dataclass(frozen=True, slots=True)
class Race:
    """The race's figures, how each of ours stands against eager, and how the fused module stands
    against the normalized one (None where one of the two did not run).
    """

    benchmark: Benchmark
    against_eager: Mapping[str, Comparison]
    kernels: Comparison | None


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A compiled call with the seconds that its first one took."""

    run: Call
    cold_s: float

    def __call__(self) -> object:
        return self.run()


def race(
    eager: nn.Module,
    ours: Mapping[str, nn.Module],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    device: str,
    *,
    compile_peer: bool,
    budget_s: float = _BUDGET_S,
) -> Race:
    """Time one forward of each, in turn. `cold_s` is torch.compile's first call, compilation
    included; eager and `ours` (by the names above) have run before, so theirs is unknown.
    Forwards that write to buffers or inputs write to those given.

    A peer that fails to compile keeps a row with the reason and no figures.
    """
    runs: dict[str, Call] = {EAGER: one_forward(eager, args, kwargs)}
    failed: dict[str, str] = {}
    if compile_peer:
        compiled, reason = _compiled(eager, args, kwargs)
        if compiled is None:
            failed[COMPILED] = reason
        else:
            runs[COMPILED] = compiled
    runs |= {name: one_forward(module, args, kwargs) for name, module in ours.items()}
    timings = interleaved(runs, device, rounds=_ROUNDS, budget_s=budget_s)
    peaks = {name: _peak_bytes(run, device) for name, run in runs.items()}
    against = {name: compare(timings[EAGER], timings[name]) for name in ours}
    cold = {name: run.cold_s for name, run in runs.items() if isinstance(run, _Compiled)}
    rows = [_row(name, timings, cold, peaks) for name in runs]
    rows += [
        BenchmarkRow(name, None, None, None, None, None, None, why) for name, why in failed.items()
    ]
    rounds = len(timings[EAGER].samples_us)
    fused = against.get(FUSED)
    low, high = (fused.low, fused.high) if fused else (None, None)
    both = NORMALIZED in ours and FUSED in ours
    kernels = compare(timings[NORMALIZED], timings[FUSED]) if both else None
    return Race(Benchmark(tuple(rows), rounds, low, high), against, kernels)


def contestants(ours: Mapping[str, object], *, compile_peer: bool) -> str:
    """Who races, in words."""
    words = {NORMALIZED: "the captured program", FUSED: "the fused model"}
    peers = ["eager", *(["torch.compile"] if compile_peer else [])]
    *others, last = [*peers, *(words[name] for name in ours)]
    return f"{', '.join(others)} and {last}" if others else f"{last} alone"


def one_forward(
    module: Callable[..., object], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Call:
    """One forward. Containers among the inputs are rebuilt for each, because a forward may grow
    one (a key-value cache) and the next call would not be the same.
    """
    plain = all(isinstance(value, torch.Tensor) for value in (*args, *kwargs.values()))

    def run() -> object:
        with torch.no_grad():
            if plain:
                return module(*args, **kwargs)
            fresh_args, fresh_kwargs = pytree.tree_map(_itself, (args, dict(kwargs)))
            return module(*fresh_args, **fresh_kwargs)

    return run


def _itself(leaf: object) -> object:
    return leaf


def _compiled(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Call | None, str]:
    """torch.compile in its default mode; (None, reason) when its first call fails."""
    torch._dynamo.reset()
    run = one_forward(torch.compile(module), args, kwargs)
    try:
        begin = now_s()
        run()
        spent = now_s() - begin
    except Exception as error:
        lines = str(error).strip().splitlines()
        return None, f"torch.compile failed: {type(error).__name__}: {lines[0] if lines else ''}"

    return _Compiled(run, spent), ""


def _peak_bytes(run: Call, device: str) -> int | None:
    """Peak device memory of one forward, weights included; unknown on CPU."""
    if not device.startswith("cuda"):
        return None
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated(device)


def _row(
    name: str,
    timings: Mapping[str, Timing],
    cold: Mapping[str, float],
    peaks: Mapping[str, int | None],
) -> BenchmarkRow:
    timing = timings[name]
    return BenchmarkRow(
        name=name,
        median_us=timing.median_us,
        p20_us=timing.p20_us,
        p80_us=timing.p80_us,
        speedup_vs_eager=compare(timings[EAGER], timing).ratio,
        cold_s=cold.get(name),
        peak_bytes=peaks[name],
    )
