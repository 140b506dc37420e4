"""The command as a person runs it, in a process of its own, from the model to the exit status."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from planner.facts import facts_folder

ROOT = Path(__file__).parent.parent
MODEL = """
import torch
from torch import nn


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.linspace(-1, 1, 32))

    def forward(self, x):
        return torch.nn.functional.gelu(x + self.bias) * 0.5


def build():
    return Chain().eval(), (torch.ones(6, 32),), {}


def wrong_inputs():
    return Chain().eval(), (torch.ones(6, 31),), {}


def linear():
    return nn.Linear(32, 32)
"""
TINY_BERT = [
    "hf:bert",
    *("--set", "num_hidden_layers=1", "--set", "hidden_size=16", "--set", "vocab_size=64"),
    *("--set", "num_attention_heads=2", "--set", "intermediate_size=32"),
    *("--seq", "8", "--batch", "2"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the user works: a file with models, and a finished run in `run`."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "net.py").write_text(MODEL)
    return folder


@pytest.fixture(scope="module")
def fused(folder: Path) -> subprocess.CompletedProcess[str]:
    return _run(folder, "fuse", "net.py:build", "--no-compile", "--out", "run")


def _run(folder: Path, *arguments: str, tree: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "100", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "planner", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def _valid(text: str) -> Any:
    schema = json.loads((facts_folder() / "schema" / "report.schema.json").read_text())
    document = json.loads(text)
    jsonschema.Draft202012Validator(schema).validate(document)
    return document


def _files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


# --- every verb ------------------------------------------------------------------------------


def test_audit_of_a_transformers_model_as_json(folder: Path) -> None:
    done = _run(
        folder, "audit", *TINY_BERT, "--no-measure", "--backend", "onnx", "--format", "json"
    )
    assert done.returncode == 0, done.stderr
    report = _valid(done.stdout)
    assert set(report["coverage"]) == {"onnx"}
    assert report["model"]["inputs"] == {"input_ids": "int64[2, 8]"}
    assert {row["op"] for row in report["ops"]} >= {"aten.linear.default", "aten.gelu.default"}


def test_a_gate_is_held(folder: Path) -> None:
    done = _run(folder, "audit", "net.py:build", "--no-measure", "--fail-under", "100")
    assert done.returncode in (0, 1)
    fell_short = [line for line in done.stderr.splitlines() if line.startswith("gate: ")]
    assert bool(fell_short) is (done.returncode == 1)
    assert "aten.gelu.default" in done.stdout


def test_rank_on_a_terminal_and_as_json(folder: Path) -> None:
    shown = _run(folder, "rank", "net.py:build")
    assert shown.returncode == 0, shown.stderr
    assert "gelu" in shown.stdout
    report = _valid(_run(folder, "rank", "net.py:build", "--format", "json", "-q").stdout)
    assert all(row["total_us"] > 0 for row in report["ops"])
    assert report["model"]["name"] == "net.py:build"


def test_inputs_can_be_made_for_a_module_alone(folder: Path) -> None:
    arguments = ("rank", "net.py:linear", "--input", "input=float32[3,32]", "--format", "json")
    report = _valid(_run(folder, *arguments).stdout)
    assert report["model"]["inputs"] == {"input": "float32[3, 32]"}


def test_the_profiler_is_silent(fused: subprocess.CompletedProcess[str]) -> None:
    assert "profile the eager model" in fused.stderr
    assert "profiler_start" not in fused.stderr


def test_fuse_writes_the_run(folder: Path, fused: subprocess.CompletedProcess[str]) -> None:
    assert fused.returncode == 0, fused.stderr
    assert "bias_gelu" in fused.stdout
    report = _valid((folder / "run" / "report.json").read_text())
    assert report["outcome"]["result"] in ("fused", "original")
    assert [row["rule"] for row in report["fusions"]] == ["gelu_residual"]
    assert all(row["passed"] for row in report["numerics"])
    kernel = folder / "run" / "kernels" / f"{report['fusions'][0]['kernel']}.py"
    assert "@triton.jit" in kernel.read_text()
    assert (folder / "run" / "graphs" / "00_captured.py").exists()


def test_bench_shows_the_race(folder: Path) -> None:
    done = _run(folder, "bench", "net.py:build", "--no-compile", "--format", "json")
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in _valid(done.stdout)["benchmark"]["rows"]}
    assert rows["eager"]["speedup_vs_eager"] == 1.0


@pytest.mark.usefixtures("fused")
def test_report_shows_a_kept_run_again(folder: Path) -> None:
    shown = _run(folder, "report", "run")
    assert shown.returncode == 0, shown.stderr
    assert "bias_gelu" in shown.stdout
    again = _run(folder, "report", "run/report.json", "--format", "json")
    assert json.loads(again.stdout) == json.loads((folder / "run" / "report.json").read_text())


# --- mistakes: one message, the right status, nothing changed --------------------------------

MISTAKES = {
    "no such form": (["rank", "my-model"], 2, "'my-model' has no known form"),
    "no callable named": (["rank", "net.py"], 2, "net.py:NAME"),
    "no such callable": (["rank", "net.py:biuld"], 2, "Did you mean 'build'?"),
    "no such file": (["rank", "none.py:build"], 2, "none.py: there is no such file"),
    "no such type": (["rank", "hf:bret"], 2, "bert"),
    "wrong inputs": (["fuse", "net.py:wrong_inputs", "--out", "new"], 2, "net.py:12"),
    "no such device": (["fuse", "net.py:build", "--device", "cuda:7", "--out", "new"], 3, "cuda:7"),
    "unknown device": (["fuse", "net.py:build", "--device", "tpu"], 2, "'tpu' is not known"),
    "unknown backend": (["audit", "net.py:build", "--backend", "onyx"], 2, "onyx"),
    "no report there": (["report", "nowhere"], 2, "nowhere"),
    "not a report": (["report", "net.py"], 2, "net.py"),
    "a key that is none": (["rank", *TINY_BERT, "--set", "hiden_size=8"], 2, "hiden_size"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gives_one_clear_message(folder: Path, name: str) -> None:
    arguments, status, said = MISTAKES[name]
    before = _files(folder)
    done = _run(folder, *arguments, "-q") if arguments[0] != "report" else _run(folder, *arguments)
    assert done.returncode == status
    assert done.stdout == ""
    assert said in done.stderr
    assert done.stderr.count("fuseplan: error: ") == 1
    assert "Traceback" not in done.stderr
    assert _files(folder) == before


@pytest.mark.usefixtures("fused")
def test_a_run_is_not_written_over(folder: Path) -> None:
    before = _files(folder)
    done = _run(folder, "fuse", "net.py:build", "--no-compile", "--out", "run")
    assert done.returncode == 2
    assert "--force" in done.stderr
    assert _files(folder) == before


def test_a_broken_report_is_told_from_a_missing_one(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text('{"schema_version": 1, "model":')
    done = _run(folder, "report", str(tmp_path))
    assert done.returncode == 2
    assert "report.json" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_table_with_a_key_twice_is_refused(folder: Path, tmp_path: Path) -> None:
    """On a copy of the project whose table has the mistake."""
    for name in ("planner", "fusion_kernels", "coverage"):
        shutil.copytree(ROOT / name, tmp_path / name)
    table = tmp_path / "coverage" / "backends" / "cpu.yaml"
    first = next(line for line in table.read_text().splitlines() if line[:1].isalpha())
    with table.open("a") as stream:
        stream.write(f"{first}\n")
    arguments = ("audit", "net.py:build", "--no-measure", "--backend", "cpu")
    done = _run(folder, *arguments, tree=tmp_path)
    assert done.returncode == 2
    assert "stands twice" in done.stderr
    assert "cpu.yaml" in done.stderr
    assert "Traceback" not in done.stderr


def test_debug_shows_the_traceback(folder: Path) -> None:
    done = _run(folder, "rank", "net.py:biuld", "--debug")
    assert done.returncode == 2
    assert "Traceback" in done.stderr
