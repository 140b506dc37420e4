"""The chain from a model to a fused module and its report: one real run, and which of the programs
comes back.
"""

from __future__ import annotations

import copy
import json
import shutil
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from made_up_machine import (
    Block,
    block_input,
    failed_rows,
    fuse_unraced,
    made_up,
    race_won_by,
    small_block,
)
from torch import Tensor, nn

import planner
from planner import pipeline
from planner import planning as planning_of_programs
from planner.facts import facts_folder
from planner.fusion import contest
from planner.fusion.module import FusedModule
from planner.report.io import to_json
from planner.report.model import NumericsRow, Report
from planner.report.run_dir import prepare, write_report
from planner.support.tables import UnknownBackend

# --- one real run ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A model before and after, and what was written."""

    model: Block
    state: dict[str, Tensor]
    x: Tensor
    fused: FusedModule
    out: Path

    @property
    def report(self) -> Report:
        return self.fused.report


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The whole chain with compiled regions; the races' figures are real, their verdicts are
    not left to chance.
    """
    out = tmp_path_factory.mktemp("run")
    model, x = small_block(), block_input()
    state = copy.deepcopy(model.state_dict())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contest, "interleaved", made_up)
        patch.setattr(pipeline, "race", race_won_by(2.0, 1.0))
        fused = planner.fuse(model, (x,), name="a block", out=out, backends=("cpu",))
    return Run(model, state, x, fused, out)


def test_the_fused_module_computes_what_eager_does(run: Run) -> None:
    assert run.fused.fused
    torch.testing.assert_close(run.fused(run.x), run.model(run.x))
    torch.testing.assert_close(run.fused(x=block_input() + 1), run.model(block_input() + 1))
    assert run.fused.fallbacks == 0


def test_both_named_rules_are_kept_and_told(run: Run) -> None:
    kept = {row.rule: row for row in run.report.fusions if row.kept}
    assert set(kept) == {"gelu_residual", "add_layer_norm"}
    assert kept["gelu_residual"].module == ""
    assert kept["add_layer_norm"].module == "norm"
    assert "made_up_machine.py" in (kept["gelu_residual"].source or "")
    assert run.report.outcome is not None
    assert run.report.outcome.result == "fused"
    assert "2 of 2 fusions kept" in run.report.outcome.reason


def test_every_kernel_is_verified_compiled_and_interpreted(run: Run) -> None:
    assert failed_rows(run.report) == []
    for kernel in {row.kernel for row in run.report.fusions}:
        cases = [row.case for row in run.report.numerics if row.subject == kernel]
        assert any(case.startswith("CPU region, ") for case in cases)
        assert any(case.startswith("Triton, interpreted") for case in cases)
        assert not any("eager" in case for case in cases)
    assert {r.measure for r in run.report.numerics if r.subject == "a block"} == {
        "norm",
        "difference",
    }


def test_the_kernel_that_writes_over_its_input_is_in_the_program(run: Run) -> None:
    assert "_into_" in run.fused.code
    assert any(", in place, " in row.case for row in run.report.numerics)


def test_the_report_satisfies_its_schema(run: Run) -> None:
    schema = json.loads((facts_folder() / "schema" / "report.schema.json").read_text())
    document = json.loads(to_json(run.report))
    jsonschema.Draft202012Validator(schema).validate(document)
    assert document["ops"]
    assert set(document["coverage"]) == {"cpu"}
    assert document["unlinked_share"] is not None


def test_all_measured_time_is_in_kernels_rewritten_or_left(run: Run) -> None:
    found = run.report.fusable
    assert found is not None
    left_us = sum(row.us or 0.0 for row in found.left)
    parts = found.in_kernels_us + found.rewritten_us + found.unlinked_us + left_us
    assert parts == pytest.approx(found.total_us)
    assert found.total_us + found.products_us == pytest.approx(run.report.profile.operators_us)
    assert {row.op for row in found.left} <= {"aten.view", "aten.t"}
    assert found.in_kernels_us > 0


def test_the_stages_are_told_with_what_lies_in_them(run: Run) -> None:
    depths = {row.title: row.depth for row in run.report.stages}
    assert depths["plan the fusions"] == 0
    assert {depth for title, depth in depths.items() if title.startswith("verify and time")} == {1}
    assert all(row.seconds > 0 for row in run.report.stages)


def test_kernels_and_graphs_are_written(run: Run) -> None:
    kernels = {path.stem for path in (run.out / "kernels").glob("*.py")}
    assert {row.kernel for row in run.report.fusions} <= kernels
    names = [path.name for path in sorted((run.out / "graphs").glob("*.py"))]
    recorded = [f"{n:02d}_{p.name}.py" for n, p in enumerate(run.report.capture.passes)]
    assert names == recorded
    assert names[0] == "00_captured.py"
    assert "fuseplan" in (run.out / "graphs" / recorded[-1]).read_text()


def test_a_later_run_knows_all_of_it_as_an_earlier_runs(run: Run, tmp_path: Path) -> None:
    again = shutil.copytree(run.out, tmp_path / "again", ignore=shutil.ignore_patterns("__py*"))
    write_report(again, run.report)
    prepare(again, force=True)
    assert [path for path in again.rglob("*") if path.is_file()] == []


def test_the_users_model_is_untouched(run: Run) -> None:
    assert all(torch.equal(value, run.state[key]) for key, value in run.model.state_dict().items())
    assert all(p.requires_grad for p in run.model.parameters())
    assert not run.model.training
    assert set(vars(run.model)) == set(vars(small_block()))
    assert torch.equal(run.x, block_input())


def test_report_and_plan_are_on_the_module(run: Run) -> None:
    assert [f.operator.name for f in run.fused.plan.chosen] == [
        row.kernel for row in run.report.fusions if row.kept
    ]


# --- what comes back -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "result"), [(1.5, "fused"), (1.05, "original"), (0.8, "original")]
)
def test_only_a_whole_that_wins_is_used(machine: Any, ratio: float, result: str) -> None:
    machine(ratio)
    model = small_block()
    fused = fuse_unraced(model, block_input())
    assert fused.report.outcome is not None
    assert fused.report.outcome.result == result
    assert fused.fused is (result == "fused")
    assert ("wins" in fused.report.outcome.reason) is (result == "fused")
    torch.testing.assert_close(fused(block_input()), model(block_input()))
    assert [row.kept for row in fused.report.fusions] == [result == "fused"] * 2
    assert fused.report.fusable is None  # nothing was profiled
    assert all("alone: wins" in row.reason for row in fused.report.fusions if not row.kept)


@pytest.mark.parametrize(
    ("fused", "normalized", "result"),
    [
        (1.5, 2.0, "normalized"),
        (0.8, 1.5, "normalized"),
        (1.5, 1.55, "fused"),
        (1.05, 1.05, "original"),
    ],
)
def test_kernels_that_slow_the_whole_down_are_left_out(
    machine: Any, fused: float, normalized: float, result: str
) -> None:
    machine(fused, normalized)
    model = small_block()
    found = fuse_unraced(model, block_input())
    assert found.report.outcome is not None
    assert found.report.outcome.result == result
    assert ("fuseplan" in found.code) is found.fused is (result == "fused")
    assert bool(found.code) is (result != "original")
    torch.testing.assert_close(found(block_input()), model(block_input()))
    assert found.fallbacks == 0
    checked = {row.subject for row in found.report.numerics if "without kernels" in row.subject}
    assert checked == ({"Block without kernels"} if result == "normalized" else set())


@pytest.mark.parametrize("fused", [1.5, 0.8])
def test_a_program_without_kernels_that_is_wrong_is_not_used(
    machine: Any, monkeypatch: pytest.MonkeyPatch, fused: float
) -> None:
    machine(fused, 2.0)

    def wrong(*args: Any) -> tuple[NumericsRow, ...]:
        right = "without kernels" not in args[5]
        return (NumericsRow(args[5], "float32", 1.0, 0.0, 1e-5, right, "norm"),)

    monkeypatch.setattr(pipeline, "verify_whole", wrong)
    found = fuse_unraced(small_block(), block_input())
    assert found.report.outcome is not None
    assert found.report.outcome.result == ("fused" if fused > 1 else "original")
    assert [row.subject for row in failed_rows(found.report)] == ["Block without kernels"]


@pytest.mark.usefixtures("machine")
def test_a_whole_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: Any) -> tuple[NumericsRow, ...]:
        return (NumericsRow("net", "float32", 1.0, 0.0, 1e-5, False, "norm"),)

    monkeypatch.setattr(pipeline, "verify_whole", wrong)
    model = small_block()
    fused = fuse_unraced(model, block_input())
    assert not fused.fused
    assert fused.report.outcome is not None
    assert fused.report.outcome.reason == "the fused model fails a numerics check: norm"
    assert failed_rows(fused.report)
    assert torch.equal(fused(block_input()), model(block_input()))


@pytest.mark.usefixtures("machine")
def test_a_bug_between_the_kernels_is_caught_in_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every kernel is right, but the rewritten program drops the last norm's weight."""
    rewriter = planning_of_programs.fuse_as_planned

    def broken(plan: Any) -> Any:
        right = rewriter(plan)

        def change(program: Any) -> tuple[str, ...]:
            notes = right(program)
            output = next(iter(reversed(program.graph.nodes)))
            (last,) = output.args[0]
            with program.graph.inserting_before(output):
                scaled = program.graph.call_function(torch.ops.aten.mul.Tensor, (last, 1.001))
            scaled.meta = dict(last.meta)
            output.args = ((scaled,),)
            return tuple(notes)

        return change

    monkeypatch.setattr(planning_of_programs, "fuse_as_planned", broken)
    fused = fuse_unraced(small_block(), block_input())
    assert not fused.fused
    assert {row.measure for row in failed_rows(fused.report)} == {"norm", "difference"}


@pytest.mark.usefixtures("machine")
def test_the_output_folder_may_be_text(tmp_path: Path) -> None:
    model, folder = small_block(), tmp_path / "run"
    planner.capture(model, (block_input(),), out=str(folder))
    captured = sorted(path.name for path in (folder / "graphs").glob("*.py"))
    assert captured[0] == "00_captured.py"
    shutil.rmtree(folder)
    planner.audit(model, (block_input(),), measure=False, backends=(), out=str(folder))
    assert sorted(path.name for path in (folder / "graphs").glob("*.py")) == captured
    fuse_unraced(model, block_input(), out=str(folder))
    assert list((folder / "kernels").glob("gelu_residual*.py"))


@pytest.mark.parametrize("verb", [planner.audit, planner.fuse])
def test_an_unknown_backend_is_refused_before_the_model_is_looked_at(verb: Any) -> None:
    with pytest.raises(UnknownBackend, match="tensorrt"):
        verb(small_block().train(), (), backends=("cpu", "tensorrt"))


class Titles:
    """A `Progress` that keeps the stages' titles."""

    def __init__(self) -> None:
        self.stages: list[str] = []

    def stage(self, title: str) -> AbstractContextManager[None]:
        self.stages.append(title)
        return nullcontext()

    def note(self, text: str) -> None:
        pass


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("peer", "who"),
    [
        (False, "eager, the captured program and the fused model"),
        (True, "eager, torch.compile, the captured program and the fused model"),
    ],
)
def test_the_race_names_who_runs(peer: bool, who: str) -> None:
    titles = Titles()
    fuse_unraced(small_block(), block_input(), compile_peer=peer, progress=titles)
    assert f"race {who}" in titles.stages


@pytest.mark.usefixtures("machine")
def test_a_model_with_nothing_to_fuse_comes_back_as_it_was() -> None:
    """The input of a linear is called like a builtin."""
    model = nn.Linear(24, 24).eval()
    fused = fuse_unraced(model, block_input())
    assert not fused.fused
    assert fused.report.fusions == ()
    assert fused.report.outcome is not None
    assert fused.report.outcome.reason == "nothing was fused: 0 of 0 fusions kept"
    assert [row.name for row in fused.report.benchmark.rows] == ["eager", "normalized"]
    assert torch.equal(fused(block_input()), model(block_input()))


@pytest.mark.usefixtures("machine")
def test_a_model_where_everything_is_refused_says_why() -> None:
    model, x = small_block().double(), block_input().double()
    fused = fuse_unraced(model, x)
    assert not fused.fused
    assert fused.report.fusions == ()
    reasons = [row.reason for row in fused.report.rejections]
    assert set(reasons) == {"float64 tensors are left to eager: kernels compute in float32"}
    assert {row.rule for row in fused.report.rejections} >= {"gelu_residual", "add_layer_norm"}


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("most", [0, 1])
def test_max_fusions_is_an_upper_bound(most: int) -> None:
    fused = fuse_unraced(small_block(), block_input(), max_fusions=most)
    assert sum(row.kept for row in fused.report.fusions) == most
    assert fused.fused is bool(most)
    left_out = [row for row in fused.report.rejections if f"--max-fusions {most}" in row.reason]
    assert len(left_out) == 2 - most


@pytest.mark.usefixtures("machine")
def test_a_bfloat16_model_meets_its_own_lines() -> None:
    model, x = small_block().bfloat16(), block_input().bfloat16()
    fused = fuse_unraced(model, x)
    assert failed_rows(fused.report) == []
    assert fused.fused
    out = fused(x)
    assert out.dtype is torch.bfloat16
    torch.testing.assert_close(out, model(x), rtol=2e-2, atol=2e-2)
