"""Measures on one CUDA device, step by step, and writes raw JSON: ceilings, kernels, models.

    python bench/h200.py --out bench/results/h200 [--only kernels,bert_b1_s128]

A step whose file is there is not run again, so a run that was cut short goes on where it stopped.
The last thing printed is a short table. `python bench/page.py` makes docs/benchmarks.md from the
files.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

import planner
from fusion_kernels.inputs import CASES, InputSpec, draw_case
from fusion_kernels.library import define
from planner.cost.devices import device_for
from planner.environment import environment
from planner.fusion.module import FusedModule
from planner.fusion.places import find_places
from planner.fusion.plan import write_kernel
from planner.fusion.tune import tune
from planner.graph.export import capture as export
from planner.report.io import to_json
from planner.sources.load import load_subject
from planner.sources.options import SourceOptions
from planner.timing import Timing, compare, device_only, interleaved, now_s, percentile
from planner.verify import verify_region

DEVICE = "cuda:0"
LARGE, NARROW, UNTUNED = (8, 4096, 8192), (16384, 768), (5, 1111, 3000)
DTYPES = ("bfloat16", "float16", "float32")
L2_BYTES = 60 << 20


class GeluResidual(nn.Module):
    """GELU(x) + residual."""

    def __init__(self, approximate: str) -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(x, approximate=self.approximate) + residual


class BiasAddLayerNorm(nn.Module):
    """LayerNorm(x + bias + residual)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(width))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.bias + residual)


RULES: dict[str, Callable[[int], nn.Module]] = {
    "gelu_residual": lambda _: GeluResidual("none"),
    "gelu_tanh_residual": lambda _: GeluResidual("tanh"),
    "bias_add_layer_norm": BiasAddLayerNorm,
}


def ceilings() -> dict[str, Any]:
    """Copy rate (read plus write) and bf16 matrix rate, both on random data."""
    source = torch.randn(1 << 31, dtype=torch.bfloat16, device=DEVICE)
    target = torch.empty_like(source)
    a, b = (torch.randn(8192, 8192, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
    calls = {"copy": lambda: target.copy_(source), "matrix": lambda: a @ b}
    timings = interleaved(calls, DEVICE, rounds=40)
    return {
        "copy_gbs": 2 * source.numel() * 2 / timings["copy"].median_us / 1e3,
        "matrix_tflops": 2 * 8192**3 / timings["matrix"].median_us / 1e6,
        "copy_us": _figures(timings["copy"]),
        "matrix_us": _figures(timings["matrix"]),
    }


def kernels(out: Path) -> list[dict[str, Any]]:
    """Every rule on every shape: time against eager and torch.compile, and numerics, by dtype."""
    rows = []
    for name, build in RULES.items():
        for shape in (LARGE, NARROW, UNTUNED):
            for dtype in DTYPES if shape != LARGE else DTYPES[:1]:
                print(f"kernel {name} {shape} {dtype}", file=sys.stderr, flush=True)
                rows.append(_kernel(name, build(shape[-1]), shape, getattr(torch, dtype), out))
    return rows


def _kernel(
    name: str, module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, out: Path
) -> dict[str, Any]:
    """One rule at one shape and dtype; the untuned shape keeps the default configuration."""
    module = module.to(DEVICE, dtype).eval()
    specs = [InputSpec(shape, dtype)] * 2
    example = draw_case(specs, CASES[0], 0, device=DEVICE)
    captured = planner.capture(module, example)
    ((way, *_),), _ = find_places(captured.program, device_for(DEVICE), DEVICE)
    folder = out / "kernels"
    operator = define(way.source, write_kernel(way.source, folder))
    trials = () if shape == UNTUNED else tune(way, operator, folder, DEVICE, seed=3)
    numerics = verify_region(way.lowered, operator, DEVICE, seed=7)
    weights = {key: parameter.detach() for key, parameter in module.named_parameters()}
    signature = captured.program.graph_signature.inputs_to_parameters
    size = way.traffic.bytes_after
    count = 1 if size > 8 * L2_BYTES else -(-4 * L2_BYTES // size)
    sets = [
        tuple(torch.randn(shape, dtype=dtype, device=DEVICE) for _ in range(2))
        for _ in range(count)
    ]
    names = [node.name for node in way.lowered.inputs]

    def fused(x: torch.Tensor, residual: torch.Tensor) -> Any:
        given = {"x": x, "residual": residual}
        arguments = [weights[signature[n]] if n in signature else given[n] for n in names]
        return operator.overload(*arguments)

    torch._dynamo.reset()
    peers = {
        "eager": module,
        "compile_default": torch.compile(module, dynamic=False),
        "fused": fused,
    }
    graphs = {key: device_only(_over(run, sets), DEVICE) for key, run in peers.items()}
    timings = interleaved(graphs, DEVICE, rounds=60)
    per_call = {key: [s / count for s in t.samples_us] for key, t in timings.items()}
    return {
        "rule": name,
        "shape": list(shape),
        "dtype": str(dtype).removeprefix("torch."),
        "kernel": operator.name,
        "config": str(operator.source.config),
        "bytes": size,
        "times_us": {key: _figures(Timing(tuple(v))) for key, v in per_call.items()},
        "gbs": {key: size / median(v) / 1e3 for key, v in per_call.items()},
        "trials": [{"config": t.config, "median_us": t.median_us} for t in trials],
        "numerics": [
            {
                "measure": r.measure,
                "case": r.case,
                "error": r.error,
                "eager_error": r.eager_error,
                "limit": r.limit,
                "passed": r.passed,
            }
            for r in numerics
        ],
    }


def _over(
    run: Callable[..., Any], sets: Sequence[tuple[torch.Tensor, ...]]
) -> Callable[[], object]:
    def call() -> None:
        for tensors in sets:
            run(*tensors)

    return call


def transformer(name: str, batch: int, seq: int, out: Path, **settings: Any) -> dict[str, Any]:
    """A model in bf16: eager, torch.compile, and the way from the raw capture to the fused model.

    "captured" runs the exported program as it comes (with the mask the tracer made), "normalized"
    after the mask is dropped, "fused" with the kernels in. All share weights and are timed in
    turn.
    """
    pairs = tuple(settings.items())
    options = SourceOptions(device="cuda", dtype="bfloat16", batch=batch, seq=seq, settings=pairs)
    subject = load_subject(name, options)
    model, args, kwargs = subject.module, subject.args, subject.kwargs
    raw = export(model, args, kwargs)
    captured = FusedModule(raw.twin, raw.program)
    clean = planner.capture(model, args, kwargs)
    normalized = FusedModule(clean.source.twin, clean.program)
    begin = now_s()
    fused = planner.fuse(
        model, args, kwargs, name=name, out=out / "run", compile_peer=False, backends=("cuda",)
    )
    planning_s = now_s() - begin
    (out / "report.json").write_text(to_json(fused.report), encoding="utf-8")
    torch._dynamo.reset()
    compiled = torch.compile(model)
    begin = now_s()
    with torch.no_grad():
        compiled(*args, **kwargs)
    torch.cuda.synchronize()
    compile_s = now_s() - begin
    modules = {
        "eager": model,
        "compile_default": compiled,
        "captured": captured,
        "normalized": normalized,
        "fused": fused,
    }
    forwards = {key: _forward(module, args, kwargs) for key, module in modules.items()}
    for key in ("eager", "compile_default", "fused"):
        forwards[f"{key} (inference_mode)"] = _inference(modules[key], args, kwargs)
    timings = interleaved(forwards, DEVICE, rounds=60)
    ratio = {
        "fused_vs_eager": compare(timings["eager"], timings["fused"]),
        "fused_vs_compile": compare(timings["compile_default"], timings["fused"]),
        "mask_dropped": compare(timings["captured"], timings["normalized"]),
        "regions_fused": compare(timings["normalized"], timings["fused"]),
    }
    return {
        "model": name,
        "settings": settings,
        "dtype": "bfloat16",
        "batch": batch,
        "seq": seq,
        "times_us": {key: _figures(t) for key, t in timings.items()},
        "ratios": {k: {"ratio": c.ratio, "low": c.low, "high": c.high} for k, c in ratio.items()},
        "planning_s": planning_s,
        "stages_s": [[row.title, row.depth, row.seconds] for row in fused.report.stages],
        "compile_first_call_s": compile_s,
        "outcome": fused.report.outcome.reason if fused.report.outcome else "",
        "fallbacks": [captured.fallbacks, normalized.fallbacks, fused.fallbacks],
        "unlinked_share": fused.report.unlinked_share,
        "numerics": [
            [r.subject, r.measure, r.error, r.limit, r.passed] for r in fused.report.numerics
        ],
    }


def _forward(module: Callable[..., Any], args: Any, kwargs: Any) -> Callable[[], object]:
    def run() -> object:
        with torch.no_grad():
            return module(*args, **kwargs)

    return run


def _inference(module: Callable[..., Any], args: Any, kwargs: Any) -> Callable[[], object]:
    def run() -> object:
        with torch.inference_mode():
            return module(*args, **kwargs)

    return run


def _figures(timing: Timing) -> dict[str, float]:
    return {
        "median": timing.median_us,
        "p20": percentile(timing.samples_us, 0.2),
        "p80": percentile(timing.samples_us, 0.8),
        "samples": len(timing.samples_us),
    }


LLAMA_1B = {
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "use_cache": False,
}

STEPS: dict[str, Callable[[Path], Any]] = {
    "ceilings": lambda _: ceilings(),
    "kernels": kernels,
    "bert_b32_s512": lambda out: transformer("hf:bert", 32, 512, out),
    "bert_b1_s128": lambda out: transformer("hf:bert", 1, 128, out),
    "llama_1b_b4_s2048": lambda out: transformer("hf:llama", 4, 2048, out, **LLAMA_1B),
}


def main() -> int:
    """Run the steps whose results are not there yet, then print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=",".join(STEPS))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in options.only.split(","):
        file = options.out / f"{name}.json"
        if file.exists():
            continue
        scratch = options.out / f"{name}.run"
        scratch.mkdir(exist_ok=True)
        begin = now_s()
        try:
            result = STEPS[name](scratch)
        except Exception:
            traceback.print_exc()
            failed += 1
            continue
        record = {
            "step": name,
            "environment": asdict(environment(DEVICE)),
            "seconds": now_s() - begin,
            "result": result,
        }
        file.write_text(json.dumps(record, indent=1), encoding="utf-8")
    _table(options.out)
    return 1 if failed else 0


def _table(out: Path) -> None:
    found = {f.stem: json.loads(f.read_text(encoding="utf-8")) for f in sorted(out.glob("*.json"))}
    limit = found.get("ceilings", {}).get("result", {})
    copy_gbs = limit.get("copy_gbs", float("nan"))
    print(
        f"copy {copy_gbs:.0f} GB/s, matrix {limit.get('matrix_tflops', float('nan')):.0f} TFLOP/s"
    )
    for row in found.get("kernels", {}).get("result", []):
        shares = "  ".join(f"{k} {v / copy_gbs:.2f}" for k, v in row["gbs"].items())
        right = "ok" if all(n["passed"] for n in row["numerics"]) else "NUMERICS FAILED"
        where = f"{row['rule']:20} {row['shape']!s:18} {row['dtype']:9}"
        print(f"{where} {shares}  {row['config']}  {right}")
    for name in ("bert_b32_s512", "bert_b1_s128", "llama_1b_b4_s2048"):
        if name in found:
            result = found[name]["result"]
            times = "  ".join(f"{k} {v['median'] / 1e3:.3f}" for k, v in result["times_us"].items())
            print(f"{name}: {times} ms; {result['outcome']}; step {found[name]['seconds']:.0f} s")
            print("   " + "  ".join(f"{k} {v['ratio']:.3f}" for k, v in result["ratios"].items()))


if __name__ == "__main__":
    sys.exit(main())
