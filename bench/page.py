"""Writes docs/benchmarks.md from the raw JSON that bench/h200.py left behind.

python bench/page.py [--results bench/results/h200]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
MODELS = ("bert_b32_s512", "bert_b1_s128")
RATIOS = {
    "mask_dropped": "mask dropped: captured over normalized",
    "regions_fused": "regions fused: normalized over fused",
    "fused_vs_eager": "all: eager over fused",
    "fused_vs_compile": "torch.compile default over fused",
}


def main() -> int:
    """Read the results, write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results" / "h200")
    options = parser.parse_args()
    found = {
        f.stem: json.loads(f.read_text(encoding="utf-8")) for f in options.results.glob("*.json")
    }
    if "ceilings" not in found:
        sys.exit(f"{options.results} holds no ceilings.json; run bench/h200.py first.")
    earlier = options.results / "earlier_run"
    notes = _notes(options.results / "NOTES.md")
    body = [*_head(found), *notes, *_models(found), *_runs(found, earlier), *_kernels(found)]
    body += _shares(options.results.parent / "shares")
    page = "\n".join([*body, *_again()])
    (ROOT / "docs" / "benchmarks.md").write_text(page + "\n", encoding="utf-8")
    return 0


def _head(found: dict[str, Any]) -> list[str]:
    environment, ceilings = found["ceilings"]["environment"], found["ceilings"]["result"]
    return [
        "# Benchmarks",
        "",
        f"One {environment['device_name']}, torch {environment['torch']}, triton "
        f"{environment['triton']}, Python {environment['python']}. Medians; what is compared ran "
        "in one process, in turn. This page is made from the JSON in "
        "[bench/results/h200](../bench/results/h200) by `python bench/page.py`.",
        "",
        "| ceiling, measured in the run of the kernels below | |",
        "|---|---|",
        f"| device copy, read plus write | {ceilings['copy_gbs']:.0f} GB/s |",
        f"| bf16 matrix product, 8192 x 8192 x 8192 | {ceilings['matrix_tflops']:.0f} TFLOP/s |",
        "",
    ]


def _models(found: dict[str, Any]) -> list[str]:
    lines = [
        "## BERT-base, bf16, from `hf:bert`",
        "",
        "`captured` is the exported program as it comes, with the attention mask that tracing "
        "makes and eager does not; `normalized` is after the mask is dropped; `fused` has the "
        "kernels in. The same weights serve all. No attention mask is passed.",
        "",
    ]
    for name in MODELS:
        if name in found:
            lines += _model(found[name]["result"])
    return lines


def _model(result: dict[str, Any]) -> list[str]:
    eager = result["times_us"]["eager"]["median"]
    lines = [
        f"### Batch {result['batch']}, sequence {result['seq']}",
        "",
        "| | median ms | p20 to p80 | eager over it |",
        "|---|---|---|---|",
    ]
    for name, times in result["times_us"].items():
        spread = f"{times['p20'] / 1e3:.2f} to {times['p80'] / 1e3:.2f}"
        ratio = eager / times["median"]
        lines.append(f"| {name} | {times['median'] / 1e3:.2f} | {spread} | {ratio:.2f} |")
    lines += ["", "| what brings it | ratio | 95 % interval |", "|---|---|---|"]
    for key, text in RATIOS.items():
        ratio = result["ratios"][key]
        lines.append(
            f"| {text} | {ratio['ratio']:.3f} | {ratio['low']:.3f} to {ratio['high']:.3f} |"
        )
    whole = [row for row in result["numerics"] if row[0] == result["model"]]
    failed = sum(not row[4] for row in result["numerics"])
    worst = max((row[2] / row[3] for row in whole if row[3]), default=0.0)
    return [
        *lines,
        "",
        f"Outcome: {result['outcome']}. Planning took {result['planning_s']:.0f} s (profile, "
        f"verification, tuning and race included), torch.compile's first call "
        f"{result['compile_first_call_s']:.0f} s. {len(result['numerics'])} numerics rows, "
        f"{failed} failed; the whole model reaches {worst:.2f} of its limit.",
        "",
    ]


def _runs(found: dict[str, Any], earlier: Path) -> list[str]:
    """The ratios of this run beside those of an earlier one, for the models in both."""
    files = {name: earlier / f"{name}.json" for name in MODELS if name in found}
    names = [name for name, file in files.items() if file.is_file()]
    if not names:
        return []
    lines = ["### Two runs", "", "| | | earlier run | the run above |", "|---|---|---|---|"]
    for name in names:
        before = json.loads(files[name].read_text(encoding="utf-8"))["result"]
        after = found[name]["result"]
        for key, text in RATIOS.items():
            ratios = [_ratio(result["ratios"][key]) for result in (before, after)]
            where = f"batch {after['batch']}, sequence {after['seq']}"
            lines.append(f"| {where} | {text} | {ratios[0]} | {ratios[1]} |")
    return [*lines, ""]


def _notes(file: Path) -> list[str]:
    """What whoever measured has to say about these figures."""
    return [file.read_text(encoding="utf-8")] if file.is_file() else []


def _ratio(found: dict[str, float]) -> str:
    return f"{found['ratio']:.3f} ({found['low']:.3f} to {found['high']:.3f})"


def _kernels(found: dict[str, Any]) -> list[str]:
    if "kernels" not in found:
        return []
    copy_gbs = found["ceilings"]["result"]["copy_gbs"]
    lines = [
        "## The named rules as the emitter prints them",
        "",
        "Device time in a CUDA graph over inputs that no cache holds, as a share of the copy rate "
        "(bytes counted once). [5, 1111, 3000] runs the default configuration: nobody tuned it. "
        "Numerics: every check of the contract, the worst as a part of its limit (1.00 for 16-bit "
        "dtypes is one step).",
        "",
        "| rule | shape | dtype | eager | torch.compile | fused | us | configuration | numerics |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found["kernels"]["result"]:
        shares = " | ".join(
            f"{row['gbs'][peer] / copy_gbs:.2f}" for peer in ("eager", "compile_default", "fused")
        )
        lines.append(
            f"| {row['rule']} | {row['shape']} | {row['dtype']} | {shares} | "
            f"{row['times_us']['fused']['median']:.1f} | {row['config']} | {_numerics(row)} |"
        )
    return [*lines, ""]


def _numerics(row: dict[str, Any]) -> str:
    failed = [item for item in row["numerics"] if not item["passed"]]
    if failed:
        return f"{len(failed)} of {len(row['numerics'])} failed"
    worst = max((n["error"] / n["limit"] for n in row["numerics"] if n["limit"]), default=0.0)
    return f"{len(row['numerics'])} passed, worst {worst:.2f}"


def _shares(folder: Path) -> list[str]:
    """What bench/shares.py left; nothing where it has not run."""
    records = [json.loads(f.read_text("utf-8")) for f in sorted(folder.glob("*.json"))]
    done = [record for record in records if "result" in record]
    if not done:
        return []
    rows = [row for record in done for row in _share(record["step"], record["result"])]
    return [
        "## Twelve architectures: what the kernels cover",
        "",
        f"{done[0]['environment']['device_name']}, bf16, real widths, few layers. `rest` is "
        "eager's device time outside products, convolutions and attention. Covered: in kept "
        "kernels or rewritten away. Withdrawn: in kernels that won alone, while the whole did not. "
        "Unlinked: work of eager that no capture has. Launches: kernels of one forward, eager and "
        "fused. Numerics: checks failed, and the whole model's error as a part of its limit.",
        "",
        "| model | rest ms | covered | kernels | rewritten | withdrawn | unlinked | launches "
        "| numerics | eager ms | fused ms | largest left |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
        *rows,
        "",
    ]


def _share(name: str, result: dict[str, Any]) -> list[str]:
    found, wall = result["fusable"], result["wall_us"]
    total = found["total_us"]
    parts = [f"{100 * found[k] / total:.1f} %" for k in _PARTS]
    launches = [str(v["kernels"]) if v else "?" for v in result["launches"].values()]
    numerics = result["numerics"]
    whole = (numerics["worst_whole"] or {}).get("of_limit", 0.0)
    times = [f"{wall[k] / 1e3:.2f}" if wall.get(k) else "-" for k in ("eager", "fused")]
    left = [row for row in found["left"] if row["us"]][:2]
    said = "; ".join(f"{r['op']} {100 * r['us'] / total:.1f} %: {r['reason']}" for r in left)
    cells = [name, f"{total / 1e3:.2f}", f"{100 * result['covered']:.1f} %", *parts]
    cells += [" to ".join(launches), f"{len(numerics['failed'])} failed, {whole:.2f}", *times]
    return [f"| {' | '.join(cells)} | {said.replace('|', '/')} |"]


_PARTS = ("in_kernels_us", "rewritten_us", "withdrawn_us", "unlinked_us")


def _again() -> list[str]:
    return [
        "## To measure it again",
        "",
        "    python bench/h200.py --out bench/results/h200   # on a machine with a CUDA device",
        "    python bench/shares.py --out bench/results/shares",
        "    python bench/page.py",
        "",
        "A step whose file is there is not run again; remove a file to repeat its step.",
    ]


if __name__ == "__main__":
    sys.exit(main())
