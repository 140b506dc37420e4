"""What every verb refuses, what audit, rank and bench give, and the rewrites that come back."""

from __future__ import annotations

import platform
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from made_up_machine import (
    block_input,
    failed_rows,
    fuse_unraced,
    made_up,
    small_block,
)
from torch import Tensor, nn
from torch.nn.functional import gelu

import planner
from planner import pipeline, rewriting
from planner.environment import environment
from planner.graph.errors import TrainingMode
from planner.placement import WrongDevice, is_on

# --- refusals --------------------------------------------------------------------------------


def test_a_model_in_training_mode_is_refused_with_advice() -> None:
    with pytest.raises(TrainingMode, match=r"model\.eval\(\)"):
        fuse_unraced(small_block().train(), block_input())


@pytest.mark.parametrize("verb", [planner.fuse, planner.audit, pipeline.rank, pipeline.bench])
def test_a_model_on_another_device_than_asked_is_refused(verb: Any) -> None:
    with pytest.raises(WrongDevice, match=r"lies on cpu, not on cuda.*model\.to\('cuda'\)"):
        verb(small_block(), (block_input(),), device="cuda")


def test_weights_and_inputs_on_several_devices_are_refused() -> None:
    model = small_block()
    model.norm.to("meta")
    with pytest.raises(WrongDevice, match=r"several devices \(cpu, meta\)"):
        fuse_unraced(model, block_input())


@pytest.mark.parametrize(
    ("actual", "wanted", "satisfied"),
    [
        ("cpu", "cpu", True),
        ("cpu", "cpu:0", True),
        ("cuda:0", "cuda", True),
        ("cuda:1", "cuda", True),
        ("cuda:1", "cuda:1", True),
        ("cuda:0", "cuda:1", False),
        ("cpu", "cuda", False),
    ],
)
def test_which_device_satisfies_which_wish(actual: str, wanted: str, satisfied: bool) -> None:
    assert is_on(torch.device(actual), torch.device(wanted)) is satisfied


# --- the other verbs -------------------------------------------------------------------------


def test_audit_covers_every_operator_without_running_the_model() -> None:
    report = planner.audit(small_block(), (block_input(),), backends=("cpu", "onnx"), measure=False)
    assert set(report.coverage) == {"cpu", "onnx"}
    ids = [row.id for row in report.ops]
    for found in report.coverage.values():
        assert sorted(row.op_id for row in found.rows) == sorted(ids)
        assert found.by_calls is not None
        assert found.by_time is None
    assert report.profile.kind == "unknown"
    assert all(row.total_us is None for row in report.ops)
    assert (report.fusions, report.numerics, report.outcome) == ((), (), None)


def test_audit_weighs_coverage_by_time_when_it_measures() -> None:
    report = planner.audit(small_block(), (block_input(),), backends=("cpu",))
    assert report.coverage["cpu"].by_time == pytest.approx(1.0)
    assert report.profile.kind == "measured"


def test_rank_orders_operators_by_total_time(tmp_path: Path) -> None:
    report = pipeline.rank(small_block(), (block_input(),), name="net", out=tmp_path)
    totals = [row.total_us for row in report.ops]
    assert all(total is not None and total > 0 for total in totals)
    assert totals == sorted(totals, reverse=True)
    calls = {row.op: row.calls for row in report.ops}
    assert calls["aten.linear.default"] == 2
    assert report.model.name == "net"
    assert report.model.inputs == {"0": "float32[5, 24]"}
    assert (tmp_path / "graphs" / "00_captured.py").exists()
    assert report.coverage == {}


@pytest.mark.usefixtures("machine")
def test_bench_races_and_covers_nothing() -> None:
    report = pipeline.bench(small_block(), (block_input(),), compile_peer=False)
    assert [row.name for row in report.benchmark.rows] == ["eager", "normalized", "fused"]
    assert report.coverage == {}
    assert report.profile.kind == "unknown"
    assert report.fusions


def test_the_environment_names_versions_and_no_place() -> None:
    found = environment("cpu")
    assert found.torch == torch.__version__
    assert found.python == platform.python_version()
    assert found.threads == torch.get_num_threads()
    assert found.settings["float32_matmul_precision"] == torch.get_float32_matmul_precision()
    said = repr(found)
    assert str(Path.home()) not in said
    assert socket.gethostname() not in said


# --- rewrites --------------------------------------------------------------------------------


class Rewritable(nn.Module):
    """A norm after a convolution, three linears on one input, and attention in parts."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(8, 8, 3, padding=1), nn.BatchNorm1d(8)
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x)).relu().mT
        q, k, v = (part(y).view(2, 9, 2, 4).transpose(1, 2) for part in (self.q, self.k, self.v))
        out: Tensor = (q @ k.mT * 0.5).softmax(-1) @ v
        return gelu(out) + v


@pytest.mark.parametrize("ratio", [(2.0, 1.0), (1.0, 2.0)], ids=["fused", "without_kernels"])
def test_rewrites_that_win_are_in_what_comes_back(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch, ratio: tuple[float, float]
) -> None:
    machine(*ratio)
    monkeypatch.setattr(rewriting, "interleaved", made_up)
    model, x = Rewritable().eval(), torch.randn(2, 8, 9)
    model.norm.running_var.uniform_(0.5, 2)
    fused = fuse_unraced(model, x)
    assert not failed_rows(fused.report)
    assert "scaled_dot_product_attention" in fused.code
    assert "batch_norm" not in fused.code
    assert fused.code.count("aten.linear") == 1
    outcome = fused.report.outcome
    assert outcome is not None
    assert outcome.result != "original"
    assert outcome.extra_weight_bytes == fused.extra_weight_bytes
    assert outcome.extra_weight_bytes == 4 * (8 * 8 * 3 + 8 + 24 * 8 + 24)
    with torch.no_grad():
        model.q.weight.mul_(3)
        model.norm.weight.mul_(0.5)
        torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-5)
    other = Rewritable().eval()
    fused.load_state_dict(other.state_dict())
    torch.testing.assert_close(fused(x), other(x), rtol=1e-4, atol=1e-5)
    assert fused.fallbacks == 0


@pytest.mark.usefixtures("machine")
def test_the_ranking_is_of_the_model_as_it_was_written() -> None:
    report = fuse_unraced(Rewritable().eval(), torch.randn(2, 8, 9)).report
    ops = {row.op for row in report.ops}
    assert "aten.matmul.default" in ops
    assert "aten.scaled_dot_product_attention.default" not in ops
