"""The parts of bench/shares.py that count and that stop a run."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from planner.profile.events import Event
from planner.report.model import StageRow

FILE = Path(__file__).parents[2] / "bench" / "shares.py"


@pytest.fixture(scope="module")
def shares() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_shares", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_kernels_are_counted_apart_from_copies(shares: ModuleType) -> None:
    events = [
        Event("device", "gemm", 0, 4000),
        Event("device", "Memcpy DtoD (Device -> Device)", 5000, 6000),
        Event("device", "Memset (Device)", 6000, 6500),
        Event("launch", "cudaLaunchKernel", 0, 100),
        Event("operator", "aten::mm", 0, 100),
    ]
    assert shares.counted(events) == {"kernels": 1, "copies": 2, "device_us": 5.5}


def test_stages_of_all_kernels_are_added(shares: ModuleType) -> None:
    rows = (
        StageRow("capture", 0, 2.0),
        StageRow("plan the fusions", 0, 9.0),
        StageRow("verify and time a", 1, 4.0),
        StageRow("verify", 2, 3.0),
        StageRow("verify and time b", 1, 5.0),
        StageRow("verify", 2, 1.5),
    )
    assert shares.by_stage(rows) == {
        "capture": 2.0,
        "plan the fusions": 9.0,
        "-verify and time": 9.0,
        "--verify": 4.5,
    }


def test_a_model_that_takes_too_long_is_stopped_past_every_except(shares: ModuleType) -> None:
    def wait() -> str:
        try:
            with shares.limited(0.05):
                time.sleep(30)
        except Exception:
            return "taken for a fault of the kernel at hand"
        return "not stopped"

    with pytest.raises(shares.OutOfTime):
        wait()


def test_twelve_models_are_measured(shares: ModuleType) -> None:
    assert len(shares.MODELS) == 12
    assert all(json.dumps([m.config, m.tiny]) for m in shares.MODELS.values())
