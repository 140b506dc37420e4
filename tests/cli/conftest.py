"""A user's model file and a pipeline that returns a small report instead of working."""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.report.model import (
    BackendCoverage,
    Benchmark,
    CaptureInfo,
    Environment,
    FusionRow,
    ModelInfo,
    NumericsRow,
    Outcome,
    ProfileInfo,
    Report,
)

MODEL = """
import torch
from torch import nn

def make():
    print("a user's print")
    return nn.Linear(4, 2), (torch.ones(3, 4),), {}

def fails():
    raise ValueError("boom")
"""


@dataclass
class FakePipeline:
    """Records the calls; `report` is what every verb returns."""

    report: Report
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    error: BaseException | None = None
    saved: list[tuple[Path, bool]] = field(default_factory=list)

    def answer(self, verb: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.calls.append((verb, args, kwargs))
        print("a library's print")
        with kwargs["progress"].stage("a stage"):
            kwargs["progress"].note("a note")
        if self.error is not None:
            raise self.error
        if verb != "fuse":
            return self.report
        return types.SimpleNamespace(
            report=self.report, save=lambda path, *, force: self.saved.append((path, force))
        )


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "net.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    return "net.py:make"


@pytest.fixture
def report() -> Report:
    half = BackendCoverage({"version": "1"}, 0.5, 0.985, None, 0, None, ())
    return Report(
        Environment("0", "3", "2", None, "cpu", "cpu", 1, "linux"),
        ModelInfo("net.py:make", "Linear", 10, 40, "float32", {"input": "float32[3,4]"}),
        CaptureInfo("export", 1, (), 1),
        ProfileInfo("unknown", 0, None, None, None),
        (),
        None,
        {"cpu": half},
        (FusionRow("f0", "r", ("a",), "k0", "", None, None, None, None, False, "slower"),),
        (),
        (NumericsRow("k0", "float32", 1.0, None, 1e-5, passed=False),),
        Benchmark(()),
        Outcome("original", "nothing was faster"),
    )


@pytest.fixture
def pipeline(report: Report, monkeypatch: pytest.MonkeyPatch) -> FakePipeline:
    fake = FakePipeline(report)
    module = types.ModuleType("planner.pipeline")

    def verb(name: str) -> Any:
        return lambda *args, **kwargs: fake.answer(name, args, kwargs)

    for name in ("audit", "rank", "fuse", "bench"):
        setattr(module, name, verb(name))
    monkeypatch.setitem(sys.modules, "planner.pipeline", module)
    monkeypatch.setattr(planner, "pipeline", module, raising=False)
    return fake
