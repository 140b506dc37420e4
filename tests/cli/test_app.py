"""The command line as a whole: what each verb hands on, exit statuses, stdout and stderr."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from planner.__main__ import main
from planner.errors import EnvironmentLacks
from planner.report.io import from_json, to_json
from planner.report.model import NumericsRow, Report

VERBS = ["audit", "rank", "fuse", "bench"]
ROOT = Path(__file__).parents[2]
Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize("argv", [["--help"], *([verb, "--help"] for verb in [*VERBS, "report"])])
def test_help_loads_neither_torch_nor_rich(argv: list[str]) -> None:
    script = (
        "import sys\nfrom planner.__main__ import main\n"
        f"try:\n    main({argv!r})\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "loaded = {'torch', 'rich', 'transformers', 'triton', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {loaded}' if loaded else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: fuseplan")


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_hands_model_inputs_and_options_to_the_library(
    verb: str, model: str, pipeline: Any
) -> None:
    assert main([verb, model, "--format", "json"]) == 0
    ((called, args, kwargs),) = pipeline.calls
    assert called == verb
    module, call_args, call_kwargs = args
    assert isinstance(module, torch.nn.Linear)
    assert torch.equal(call_args[0], torch.ones(3, 4))
    assert call_kwargs == {}
    assert (kwargs["name"], kwargs["device"], kwargs["out"]) == (model, None, None)


@pytest.mark.parametrize("verb", ["fuse", "bench"])
def test_precision_is_handed_on(verb: str, model: str, pipeline: Any) -> None:
    main([verb, model])
    main([verb, model, "--precision", "high"])
    assert [kwargs["precision"] for _, _, kwargs in pipeline.calls] == ["exact", "high"]


def test_audit_options(model: str, pipeline: Any) -> None:
    main(["audit", model, "--backend", "onnx", "--backend", "cuda", "--backend", "onnx"])
    main(["audit", model, "--no-measure"])
    first, second = (kwargs for _, _, kwargs in pipeline.calls)
    assert (first["backends"], first["measure"]) == (("onnx", "cuda"), True)
    assert (second["backends"], second["measure"]) == (("cpu", "cuda", "onnx"), False)


def test_fuse_options(model: str, pipeline: Any) -> None:
    main(["fuse", model, "--max-fusions", "3", "--no-compile", "--seed", "5", "--device", "cpu"])
    main(["fuse", model])
    first, second = (kwargs for _, _, kwargs in pipeline.calls)
    names = ("max_fusions", "compile_peer", "seed", "device")
    assert tuple(first[name] for name in names) == (3, False, 5, "cpu")
    assert tuple(second[name] for name in names) == (None, True, 0, None)


def test_fuse_saves_what_came_out(model: str, pipeline: Any, capsys: Captured) -> None:
    assert main(["fuse", model, "--save", "m.pt2"]) == main(["fuse", model])
    assert pipeline.saved == [(Path("m.pt2"), False)]
    assert "saved: m.pt2" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "said"), [("m.pt2", "--force"), ("m.pt", "ends in .pt2")])
def test_save_refuses_before_it_works(
    name: str, said: str, model: str, pipeline: Any, capsys: Captured
) -> None:
    Path("m.pt2").write_text("mine")
    assert main(["fuse", model, "--save", name]) == 2
    assert said in capsys.readouterr().err
    assert pipeline.calls == []
    assert Path("m.pt2").read_text() == "mine"
    main(["fuse", model, "--save", "m.pt2", "--force"])
    assert pipeline.saved == [(Path("m.pt2"), True)]


def test_stdout_is_the_result_alone(model: str, pipeline: Any, capsys: Captured) -> None:
    assert main(["rank", model, "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert from_json(out) == pipeline.report
    for said in ("a user's print", "a library's print", "a stage", "a note", f"load {model}"):
        assert said in err


def test_quiet_leaves_progress_out(model: str, pipeline: Any, capsys: Captured) -> None:
    main(["rank", model, "-q"])
    out, err = capsys.readouterr()
    assert "net.py:make" in out
    assert "stage" not in err
    assert "note" not in err
    assert pipeline.calls


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        ([], 2),
        (["polish", "x"], 2),
        (["rank"], 2),
        (["rank", "net.py:make", "--format", "yaml"], 2),
        (["rank", "net.py:make", "--batch", "0"], 2),
        (["rank", "net.py:make", "--input", "x"], 2),
        (["rank", "net.py:make", "--set", "x"], 2),
        (["audit", "net.py:make", "--fail-under", "101"], 2),
        (["fuse", "net.py:make", "--max-fusions", "-1"], 2),
        (["fuse", "net.py:make", "--precision", "low"], 2),
    ],
)
@pytest.mark.usefixtures("model", "pipeline")
def test_a_wrong_call_is_a_usage_error(argv: list[str], status: int, capsys: Captured) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == status
    assert "usage: fuseplan" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "status", "said"),
    [
        (["rank", "timm:resnet50"], 2, "no known form"),
        (["rank", "model.pt2"], 2, "no known form"),
        (["rank", "hf:brt"], 2, "hf:bert"),
        (["rank", "net.py:mk"], 2, "has no 'mk'"),
        (["rank", "net.py:fails"], 2, "net.py:10: ValueError: boom"),
        (["rank", "net.py:make", "--inputs", "x.npz"], 2, "returns its own inputs"),
        (["rank", "net.py:make", "--batch", "8", "--seq", "4"], 2, "drop --batch and --seq"),
        (["rank", "net.py:make", "--device", "tpu"], 2, "use cpu, cuda or cuda:N"),
        (["rank", "net.py:make", "--out", "net.py"], 2, "is a file"),
        (["rank", "net.py:make", "--out", "."], 2, "is not empty"),
        (["audit", "net.py:fails", "--backend", "tensorrt"], 2, "no operator table 'tensorrt'"),
        (["fuse", "net.py:fails", "--backend", "onnx@x"], 2, "no operator table 'onnx@x'"),
        (["rank", "net.py:fails", "--out", "net.py/run"], 2, "Not a directory"),
        (["report", "nowhere"], 2, "name the --out folder"),
    ],
)
@pytest.mark.usefixtures("model")
def test_a_mistake_is_one_message(
    argv: list[str], status: int, said: str, pipeline: Any, capsys: Captured
) -> None:
    assert main([*argv, *([] if argv[0] == "report" else ["-q"])]) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert "fuseplan: error: " in err
    assert err.count("error:") == 1
    assert "Traceback" not in err
    assert pipeline.calls == []


def test_a_missing_device_is_the_environments_lack(
    model: str, pipeline: Any, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["rank", model, "--device", "cuda:1"]) == 3
    assert "--device cuda:1" in capsys.readouterr().err
    assert pipeline.calls == []


def test_debug_shows_the_traceback_and_keeps_the_status(model: str, capsys: Captured) -> None:
    assert main(["rank", "net.py:fails", "--debug"]) == 2
    assert model
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "fuseplan: error: " in err


def test_the_librarys_error_keeps_its_status(model: str, pipeline: Any) -> None:
    pipeline.error = EnvironmentLacks("no C++ compiler")
    assert main(["fuse", model]) == 3


def test_a_defect_keeps_its_traceback(model: str, pipeline: Any) -> None:
    pipeline.error = ZeroDivisionError("a defect")
    with pytest.raises(ZeroDivisionError):
        main(["fuse", model])


def test_an_interrupt_is_quiet(model: str, pipeline: Any, capsys: Captured) -> None:
    pipeline.error = KeyboardInterrupt()
    assert main(["fuse", model, "-q"]) == 128 + signal.SIGINT
    assert "Traceback" not in capsys.readouterr().err


def test_a_closed_pipe_is_quiet(report: Report, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(to_json(report))
    read, write = os.pipe()
    os.close(read)  # nobody reads: the first write fails, whatever its size
    done = subprocess.run(
        [sys.executable, "-m", "planner", "report", str(tmp_path)],
        cwd=ROOT,
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(write)
    assert done.returncode == 128 + signal.SIGPIPE
    assert done.stderr == ""


@pytest.mark.parametrize(("least", "status"), [("98.5", 0), ("98.6", 1), ("0", 0), ("100", 1)])
def test_the_coverage_gate(
    least: str, status: int, model: str, pipeline: Any, capsys: Captured
) -> None:
    assert main(["audit", model, "--fail-under", least]) == status
    err = capsys.readouterr().err
    assert ("gate: cpu covers 98.5 % of calls" in err) == (status == 1)
    assert pipeline.calls


def test_unknown_coverage_does_not_pass_a_gate(model: str, pipeline: Any) -> None:
    unknown = replace(pipeline.report.coverage["cpu"], by_calls=None)
    pipeline.report = replace(pipeline.report, coverage={"cpu": unknown})
    assert main(["audit", model, "--fail-under", "0"]) == 1
    assert main(["audit", model]) == 0


def test_a_dropped_kernels_failure_is_no_gate(model: str, pipeline: Any) -> None:
    assert not pipeline.report.numerics[0].passed
    assert main(["fuse", model]) == 0


def test_a_failure_of_what_is_used_is_a_gate(model: str, pipeline: Any, capsys: Captured) -> None:
    row = NumericsRow(model, "float32", 1.0, None, 1e-5, passed=False)
    pipeline.report = replace(pipeline.report, numerics=(row,))
    assert main(["fuse", model]) == 1
    out, err = capsys.readouterr()
    assert f"gate: numerics: {model}" in err
    assert model in out


def test_a_failure_of_a_way_that_was_not_chosen_is_no_gate(model: str, pipeline: Any) -> None:
    row = NumericsRow("kernel_of_the_other_way", "float32", 1.0, None, 1e-5, passed=False)
    pipeline.report = replace(pipeline.report, numerics=(row,))
    assert main(["fuse", model]) == 0


def test_out_holds_the_report(model: str, pipeline: Any, tmp_path: Path) -> None:
    assert main(["rank", model, "--out", "runs/one"]) == 0
    written = tmp_path / "runs" / "one" / "report.json"
    assert from_json(written.read_text()) == pipeline.report
    assert pipeline.calls[0][2]["out"] == Path("runs/one")


def test_a_second_run_needs_force_and_keeps_other_files(
    model: str, pipeline: Any, tmp_path: Path
) -> None:
    assert main(["rank", model, "--out", "run"]) == 0
    (tmp_path / "run" / "notes.md").write_text("mine")
    assert main(["rank", model, "--out", "run"]) == 2
    assert main(["rank", model, "--out", "run", "--force"]) == 0
    assert (tmp_path / "run" / "notes.md").read_text() == "mine"
    assert len(pipeline.calls) == 2


def test_a_model_that_fails_leaves_an_earlier_run_alone(
    model: str, pipeline: Any, tmp_path: Path
) -> None:
    main(["rank", model, "--out", "run"])
    assert main(["rank", "net.py:fails", "--out", "run", "--force"]) == 2
    assert (tmp_path / "run" / "report.json").exists()
    assert len(pipeline.calls) == 1


def test_report_shows_what_the_run_showed(model: str, pipeline: Any, capsys: Captured) -> None:
    main(["rank", model, "--out", "run"])
    first = capsys.readouterr().out
    assert main(["report", "run"]) == 0
    assert capsys.readouterr().out == first
    assert main(["report", "run/report.json", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema_version"] == 1
    assert pipeline.calls


def test_only_a_run_with_a_folder_is_shown_as_kept(
    model: str, pipeline: Any, capsys: Captured
) -> None:
    row = NumericsRow("k0", "float32", 1.0, None, 1e-5, passed=False)
    pipeline.report = replace(pipeline.report, numerics=(row,) * 30)
    main(["rank", model])
    assert "10 more failures: --out DIR keeps all in report.json" in capsys.readouterr().out
    main(["rank", model, "--out", "run"])
    assert "10 more failures: report.json has all" in capsys.readouterr().out


def test_report_needs_no_torch(report: Report, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(to_json(report))
    script = (
        "import sys\nfrom planner.__main__ import main\n"
        f"status = main(['report', {str(tmp_path)!r}])\n"
        "sys.exit(status or ('torch' in sys.modules and 9))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "net.py:make" in done.stdout


def test_an_ascii_terminal_gets_ascii(report: Report, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(to_json(report))
    done = subprocess.run(
        [sys.executable, "-m", "planner", "report", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0, done.stderr
    assert b"Capture" in done.stdout
    assert b"---" in done.stdout
    assert b"?---" not in done.stdout
