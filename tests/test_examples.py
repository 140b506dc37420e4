"""Every example runs as a person would run it, and says what it promises to say."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))


def _run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(FOLDER / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_numbered_and_have_a_main(path: Path) -> None:
    functions = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.FunctionDef)]
    assert re.fullmatch(r"\d\d_[a-z_]+\.py", path.name)
    assert "main" in {function.name for function in functions}


def test_every_example_is_run_by_a_test() -> None:
    text = Path(__file__).read_text()
    assert [path.name for path in EXAMPLES if f'_run("{path.name}"' not in text] == []


def test_sentence_similarity_is_unchanged_by_fusing(tmp_path: Path) -> None:
    out = tmp_path / "run"
    printed = _run("01_sentence_similarity.py", "--out", str(out))
    report = json.loads((out / "report.json").read_text())

    assert "Nearest neighbours that agree: 12 of 12. Similarities unchanged." in printed
    difference = re.search(r"fused against eager: (\S+)", printed)
    assert difference is not None
    assert float(difference[1]) <= 1e-5
    assert report["numerics"]
    dropped = {row["kernel"] for row in report["fusions"] if not row["kept"]}
    assert {row["subject"] for row in report["numerics"] if not row["passed"]} <= dropped


def test_audit_reports_each_backend() -> None:
    printed = _run("02_audit_backends.py")
    for backend in ("cpu", "cuda", "onnx"):
        assert re.search(rf"^{backend}: operators \S+, calls \S+$", printed, re.MULTILINE)


def test_own_model_shows_its_generated_kernels(tmp_path: Path) -> None:
    printed = _run("03_your_own_model.py", "--out", str(tmp_path / "run"))
    kernels = list((tmp_path / "run" / "kernels").glob("*.py"))

    assert "aten.gelu.default" in printed
    assert kernels
    assert all(f"--- {kernel.name}" in printed for kernel in kernels)
    difference = re.search(r"Largest difference from the original module: (\S+)", printed)
    assert difference is not None
    assert float(difference[1]) <= 1e-5
