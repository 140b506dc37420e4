"""Measures for twelve models how much of the device time outside products their kernels cover.

    python bench/shares.py --out bench/results/shares [--only bert,t5] [--budget-s 560]
    python bench/shares.py --out /tmp/shares --device cpu --tiny   # tries the script itself

Real widths with few layers: equal kernels are judged once, so more layers change no share. A model
whose file is there is not run again, one that failed is (its `NAME.failed.json` says where it
stopped and what each stage took). `--budget-s` ends the run after so many seconds: a model that is
under way is given up, and a later run goes on from there. The last thing printed is a short table.
"""

from __future__ import annotations

import argparse
import gc
import json
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import planner
from planner.bench import one_forward
from planner.environment import environment
from planner.profile.events import Event, read_events
from planner.profile.untouched import fresh_inputs
from planner.progress import SILENT, Timed
from planner.report.io import to_json
from planner.report.model import NumericsRow, Report, StageRow
from planner.sources.load import load_subject
from planner.sources.options import SourceOptions
from planner.timing import now_s

LEAST_S = 25
"""A model is not begun with fewer seconds left."""


@dataclass(frozen=True)
class Model:
    """Configuration and input sizes of one model, and the configuration that `--tiny` takes.

    `config` may hold keys that the class reads but does not declare (deberta-v2's buckets).
    """

    config: dict[str, Any]
    tiny: dict[str, Any]
    batch: int
    seq: int | None = None


def _text(layers: int, width: int, inner: int, heads: int, **more: Any) -> dict[str, Any]:
    names = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads")
    return dict(zip(names, (layers, width, inner, heads), strict=True)) | more


def _whisper(layers: int, width: int, inner: int, heads: int, **more: Any) -> dict[str, Any]:
    sides = ("encoder", "decoder")
    sizes = {"layers": layers, "ffn_dim": inner, "attention_heads": heads}
    own = {f"{side}_{name}": size for side in sides for name, size in sizes.items()}
    return own | {"d_model": width} | more


def _t5(layers: int, width: int, inner: int, heads: int, **more: Any) -> dict[str, Any]:
    own = {"d_model": width, "d_kv": width // heads, "d_ff": inner, "num_heads": heads}
    return own | {"num_layers": layers} | more


_TINY = (2, 64, 128, 4)
_WORDS: dict[str, Any] = {"vocab_size": 128}
_TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_IMAGE = {"image_size": 32, "patch_size": 8}
_TINY_LM = _text(*_TINY, num_key_value_heads=2, **_WORDS)
_DEBERTA = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "share_att_key": True}
_DEBERTA |= {"norm_rel_ebd": "layer_norm", "position_biased_input": False, "type_vocab_size": 0}

MODELS: dict[str, Model] = {
    "bert": Model(_text(4, 768, 3072, 12), _text(*_TINY, **_WORDS), 32, 512),
    "gpt2": Model(
        {"n_layer": 4, "n_embd": 1024, "n_head": 16},
        {"n_layer": 2, "n_embd": 64, "n_head": 4, **_WORDS, **_TOKENS},
        8,
        1024,
    ),
    "llama": Model(_text(2, 2048, 8192, 32, num_key_value_heads=8), _TINY_LM, 4, 2048),
    "gemma2": Model(
        _text(2, 2304, 9216, 8, num_key_value_heads=4, head_dim=256),
        {**_TINY_LM, "head_dim": 16},
        4,
        1024,
    ),
    "t5": Model(_t5(2, 768, 3072, 12), _t5(*_TINY, **_WORDS), 16, 512),
    "vit": Model(_text(4, 768, 3072, 12), _text(*_TINY, **_IMAGE), 64),
    "whisper": Model(
        _whisper(2, 768, 3072, 12),
        _whisper(*_TINY, max_source_positions=50, decoder_start_token_id=1, **_WORDS, **_TOKENS),
        8,
        256,
    ),
    "mixtral": Model(
        _text(1, 2048, 7168, 32, num_key_value_heads=8, num_local_experts=8), _TINY_LM, 4, 1024
    ),
    "qwen3": Model(
        _text(2, 2048, 6144, 16, num_key_value_heads=8, head_dim=128),
        {**_TINY_LM, "head_dim": 16},
        4,
        2048,
    ),
    "mamba2": Model(
        {"num_hidden_layers": 2, "hidden_size": 768, "num_heads": 24, "head_dim": 64}
        | {"n_groups": 1, "chunk_size": 128, "use_cache": False},
        {"num_hidden_layers": 2, "hidden_size": 64, "num_heads": 8, "head_dim": 16, **_WORDS}
        | {"n_groups": 1, "state_size": 16, "chunk_size": 8, "use_cache": False},
        4,
        512,
    ),
    "clip": Model(
        {"text_config": {"num_hidden_layers": 2}, "vision_config": {"num_hidden_layers": 2}},
        {
            "text_config": _text(*_TINY, max_position_embeddings=32, **_WORDS, **_TOKENS),
            "vision_config": _text(*_TINY, **_IMAGE),
        },
        64,
        77,
    ),
    "deberta-v2": Model(
        _text(2, 768, 3072, 12, position_buckets=256, **_DEBERTA),
        _text(*_TINY, position_buckets=8, **_WORDS, **_DEBERTA),
        16,
        512,
    ),
}


class OutOfTime(BaseException):
    """The seconds given to a model are spent. No Exception, which verification takes for a fault
    of the kernel at hand.
    """


@dataclass
class Step:
    """One model's run: what is known of it at any moment."""

    name: str
    device: str
    tiny: bool
    scratch: Path
    timed: Timed = field(default_factory=lambda: Timed(SILENT))

    def run(self) -> dict[str, Any]:
        """Fuse the model and count what it launches before and after."""
        model = MODELS[self.name]
        with self.timed.stage("load"):
            subject = load_subject(f"hf:{self.name}", self._options(model))
        args, kwargs = subject.args, subject.kwargs
        fused = planner.fuse(
            subject.module,
            args,
            kwargs,
            name=f"hf:{self.name}",
            out=self.scratch / "run",
            compile_peer=False,
            backends=(),
            progress=self.timed,
        )
        report = fused.report
        (self.scratch / "report.json").write_text(to_json(report), encoding="utf-8")
        with self.timed.stage("count launches"):
            launches = {
                key: _launches(module, args, kwargs, self.device)
                for key, module in (("eager", subject.module), ("fused", fused))
            }
        return {
            "inputs": report.model.inputs,
            "parameters": report.model.parameters,
            "wall_us": {row.name: row.median_us for row in report.benchmark.rows},
            "outcome": asdict(report.outcome) if report.outcome else None,
            "fusable": asdict(report.fusable) if report.fusable else None,
            "covered": report.fusable.covered if report.fusable else None,
            "unlinked_us": dict(report.profile.unlinked),
            "fusions": [[row.rule, row.kept, row.reason] for row in report.fusions],
            "launches": launches,
            "numerics": _numerics(report),
            "fallbacks": fused.fallbacks,
        }

    def _options(self, model: Model) -> SourceOptions:
        config = self.scratch / "config.json"
        config.write_text(json.dumps(model.tiny if self.tiny else model.config), encoding="utf-8")
        batch, seq = (2, 16) if self.tiny else (model.batch, model.seq)
        has_text = model.seq is not None
        return SourceOptions(
            device=self.device,
            dtype="bfloat16",
            batch=batch,
            seq=seq if has_text else None,
            config=config,
        )


def _launches(module: Any, args: Any, kwargs: Any, device: str) -> dict[str, Any] | None:
    """What one forward starts on the device, by torch's profiler; None on CPU."""
    if not device.startswith("cuda"):
        return None
    own_args, own_kwargs = fresh_inputs(args, kwargs)
    run = one_forward(module, own_args, own_kwargs)
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        run()
        torch.cuda.synchronize()
    return counted(read_events(recorded.profiler.kineto_results.events()))


def counted(events: Sequence[Event]) -> dict[str, Any]:
    """Device events as numbers: kernels apart from copies and fills, and their time."""
    device = [event for event in events if event.kind == "device"]
    moved = sum(event.name.startswith(("Memcpy", "Memset")) for event in device)
    return {
        "kernels": len(device) - moved,
        "copies": moved,
        "device_us": sum(event.duration_us for event in device),
    }


def _numerics(report: Report) -> dict[str, Any]:
    """How many checks there were, and the nearest to its limit, of kernels and of the whole."""
    whole = [row for row in report.numerics if row.subject.startswith(report.model.name)]
    kernels = [row for row in report.numerics if row not in whole]
    failed = [row for row in report.numerics if not row.passed]
    return {
        "checks": len(report.numerics),
        "failed": [asdict(row) for row in failed],
        "worst_kernel": _worst(kernels),
        "worst_whole": _worst(whole),
    }


def _worst(rows: Sequence[NumericsRow]) -> dict[str, Any] | None:
    def of_limit(row: NumericsRow) -> float:
        return (row.error or 0.0) / row.limit if row.limit else 0.0

    worst = max(rows, key=of_limit, default=None)
    return None if worst is None else {**asdict(worst), "of_limit": of_limit(worst)}


def by_stage(rows: Sequence[StageRow]) -> dict[str, float]:
    """Seconds by title, what lies in other stages behind a dash a level; kernels' own stages,
    which are many, together.
    """
    seconds: dict[str, float] = {}
    for row in rows:
        title = "verify and time" if row.title.startswith("verify and time") else row.title
        key = "-" * row.depth + title
        seconds[key] = seconds.get(key, 0.0) + row.seconds
    return seconds


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises `OutOfTime` in the block when the seconds are spent."""

    def give_up(*_: Any) -> None:
        raise OutOfTime

    earlier = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)


def main() -> int:
    """Run the models whose results are not there yet, then print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tiny", action="store_true", help="tiny configurations")
    parser.add_argument("--budget-s", type=float, default=3600.0, help="seconds for this run")
    parser.add_argument("--model-s", type=float, default=150.0, help="seconds for one model")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    begin, missing = now_s(), 0
    for name in options.only.split(","):
        if (options.out / f"{name}.json").exists():
            continue
        left_s = options.budget_s - (now_s() - begin)
        if left_s < LEAST_S:
            print(f"{name}: left for a later run", file=sys.stderr, flush=True)
            missing += 1
            continue
        missing += not _step(name, options, min(options.model_s, left_s))
    _table(options.out)
    return 1 if missing else 0


def _step(name: str, options: argparse.Namespace, seconds: float) -> bool:
    """Whether the model's file was written."""
    print(f"{name}: begun, at most {seconds:.0f} s", file=sys.stderr, flush=True)
    scratch = options.out / f"{name}.run"
    scratch.mkdir(exist_ok=True)
    step, begin, said, result = Step(name, options.device, options.tiny, scratch), now_s(), "", None
    try:
        with limited(seconds):
            result = step.run()
    except OutOfTime:
        said = f"stopped after {seconds:.0f} s\n{traceback.format_exc()}"
    except Exception:
        said = traceback.format_exc()
    record = {
        "step": name,
        "environment": asdict(environment(options.device)),
        "seconds": now_s() - begin,
        "stages_s": by_stage(step.timed.rows),
    }
    failure = options.out / f"{name}.failed.json"
    if result is None:
        print(f"{name}: {said}", file=sys.stderr, flush=True)
        _write(failure, {**record, "failure": said})
    else:
        failure.unlink(missing_ok=True)
        _write(options.out / f"{name}.json", {**record, "result": result})
        print(f"{name}: done in {record['seconds']:.0f} s", file=sys.stderr, flush=True)
    _free()
    return result is not None


def _write(path: Path, record: dict[str, Any]) -> None:
    path.write_text(json.dumps(record, indent=1), encoding="utf-8")


def _free() -> None:
    """Give a model's memory back before the next one comes."""
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _table(out: Path) -> None:
    for name in MODELS:
        file, failure = out / f"{name}.json", out / f"{name}.failed.json"
        if file.exists():
            record = json.loads(file.read_text(encoding="utf-8"))
            for text in _lines(name, record):
                print(text)
        elif failure.exists():
            record = json.loads(failure.read_text(encoding="utf-8"))
            print(f"{name:10} {record['failure'].strip().splitlines()[-1]}; {_stages(record)}")


def _lines(name: str, record: dict[str, Any]) -> list[str]:
    result = record["result"]
    found, walls = result["fusable"], result["wall_us"]
    covered = "-" if result["covered"] is None else f"{100 * result['covered']:.1f} %"
    launches = [f"{v['kernels']}" if v else "?" for v in result["launches"].values()]
    worst = result["numerics"]["worst_whole"] or {}
    failed = len(result["numerics"]["failed"])
    walls_ms = " -> ".join(f"{k} {(us or 0.0) / 1e3:.2f}" for k, us in walls.items())
    head = (
        f"{name:10} {covered:>7} of {found['total_us'] / 1e3:.2f} ms (products "
        f"{found['products_us'] / 1e3:.2f}): kernels {found['in_kernels_us'] / 1e3:.2f}, rewritten "
        f"{found['rewritten_us'] / 1e3:.2f}, withdrawn {found['withdrawn_us'] / 1e3:.2f}, unlinked "
        f"{found['unlinked_us'] / 1e3:.2f}"
    )
    left = [f"{r['op']} x{r['calls']} {r['us'] or 0:.0f} us ({r['reason']})" for r in found["left"]]
    return [
        head,
        f"{'':10} launches {' -> '.join(launches)}; ms {walls_ms}; numerics "
        f"{result['numerics']['checks']} checks, {failed} failed, whole "
        f"{worst.get('of_limit', 0.0):.2f} of its limit; fallbacks {result['fallbacks']}",
        f"{'':10} {result['outcome']['reason'] if result['outcome'] else ''}",
        *(f"{'':10} left: {text}" for text in left[:4]),
        f"{'':10} {record['seconds']:.0f} s: {_stages(record)}",
    ]


def _stages(record: dict[str, Any]) -> str:
    longest = sorted(record["stages_s"].items(), key=lambda item: -item[1])
    return ", ".join(f"{title} {seconds:.1f}" for title, seconds in longest[:6])


if __name__ == "__main__":
    sys.exit(main())
