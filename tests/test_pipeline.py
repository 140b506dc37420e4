"""The chain from a model to a fused module and its report, on small models of the test's own."""

from __future__ import annotations

import copy
import json
import platform
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

import planner
from planner import pipeline, rewriting
from planner import planning as planning_of_programs
from planner.bench import Race
from planner.environment import environment
from planner.facts import facts_folder
from planner.fusion import plan as planning
from planner.fusion.module import FusedModule
from planner.fusion.precision import UnknownPrecision
from planner.graph.errors import TrainingMode
from planner.placement import WrongDevice, is_on
from planner.report.io import to_json
from planner.report.model import Benchmark, BenchmarkRow, NumericsRow, Report
from planner.report.run_dir import prepare, write_report
from planner.support.tables import UnknownBackend
from planner.timing import Comparison, Timing


class Block(nn.Module):
    """GELU with a residual, then a residual with a norm: a place for each named rule."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        h = gelu(self.up(x)) + x
        out: Tensor = self.norm(self.down(h) + h)
        return out


class Applied(nn.Module):
    """A function of itself and its inputs, with a weight and a buffer."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function, self.bias = function, nn.Parameter(torch.linspace(-1, 1, 24))
        self.register_buffer("count", torch.zeros(24))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def _x(rows: int = 5) -> Tensor:
    return torch.randn(rows, 24, generator=torch.Generator().manual_seed(0))


def _block() -> Block:
    torch.manual_seed(0)
    return Block().eval()


# --- what stands in for the machine ----------------------------------------------------------


def _made_up(calls: Mapping[str, Callable[[], object]], *_: Any, **__: Any) -> dict[str, Timing]:
    return {name: Timing((10.0 if name == "before" else 5.0,) * 9) for name in calls}


def _even(calls: Mapping[str, Callable[[], object]], *_: Any, **__: Any) -> dict[str, Timing]:
    return {name: Timing((5.0,) * 9) for name in calls}


def _race_won_by(fused: float, normalized: float) -> Callable[..., Race]:
    """A race where the two are that many times as fast as eager, give or take 0.1."""
    ratios = {"fused": fused, "normalized": normalized}

    def race(eager: nn.Module, ours: Any, args: Any, kwargs: Any, *_: Any, **__: Any) -> Race:
        with torch.no_grad():
            for module in (eager, *ours.values()):
                module(*args, **kwargs)
        rows = tuple(
            BenchmarkRow(name, 1.0, 1.0, 1.0, ratios.get(name), 0.1, None)
            for name in ("eager", *ours)
        )
        against = {name: _about(ratios[name]) for name in ours}
        kernels = _about(fused / normalized) if len(ours) == 2 else None
        return Race(Benchmark(rows, 9), against, kernels)

    return race


def _about(ratio: float) -> Comparison:
    return Comparison(ratio, ratio - 0.1, ratio + 0.1)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, uncompiled: Any) -> Iterator[Callable[..., None]]:
    """Kernels run operation by operation and each wins its race; rewrites neither win nor lose
    theirs; the whole wins by the given ratio (2), without kernels by another (1).
    """
    monkeypatch.setattr(planning, "interleaved", _made_up)
    monkeypatch.setattr(rewriting, "interleaved", _even)

    def won_by(fused: float, normalized: float = 1.0) -> None:
        monkeypatch.setattr(pipeline, "race", _race_won_by(fused, normalized))

    won_by(2.0)
    with uncompiled():
        yield won_by


def _fuse(model: nn.Module, *args: Any, **options: Any) -> FusedModule:
    settings = {"compile_peer": False, "measure": False, "backends": (), **options}
    return planner.fuse(model, args, **settings)


def _failed(report: Report) -> list[NumericsRow]:
    return [row for row in report.numerics if not row.passed]


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
    model, x = _block(), _x()
    state = copy.deepcopy(model.state_dict())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "interleaved", _made_up)
        patch.setattr(pipeline, "race", _race_won_by(2.0, 1.0))
        fused = planner.fuse(model, (x,), name="a block", out=out, backends=("cpu",))
    return Run(model, state, x, fused, out)


def test_the_fused_module_computes_what_eager_does(run: Run) -> None:
    assert run.fused.fused
    torch.testing.assert_close(run.fused(run.x), run.model(run.x))
    torch.testing.assert_close(run.fused(x=_x() + 1), run.model(_x() + 1))
    assert run.fused.fallbacks == 0


def test_both_named_rules_are_kept_and_told(run: Run) -> None:
    kept = {row.rule: row for row in run.report.fusions if row.kept}
    assert set(kept) == {"gelu_residual", "add_layer_norm"}
    assert kept["gelu_residual"].module == ""
    assert kept["add_layer_norm"].module == "norm"
    assert "test_pipeline.py" in (kept["gelu_residual"].source or "")
    assert run.report.outcome is not None
    assert run.report.outcome.result == "fused"
    assert "2 of 2 fusions kept" in run.report.outcome.reason


def test_every_kernel_is_verified_compiled_and_interpreted(run: Run) -> None:
    assert _failed(run.report) == []
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
    assert set(vars(run.model)) == set(vars(_block()))
    assert torch.equal(run.x, _x())


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
    model = _block()
    fused = _fuse(model, _x())
    assert fused.report.outcome is not None
    assert fused.report.outcome.result == result
    assert fused.fused is (result == "fused")
    assert ("wins" in fused.report.outcome.reason) is (result == "fused")
    torch.testing.assert_close(fused(_x()), model(_x()))
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
    model = _block()
    found = _fuse(model, _x())
    assert found.report.outcome is not None
    assert found.report.outcome.result == result
    assert ("fuseplan" in found.code) is found.fused is (result == "fused")
    assert bool(found.code) is (result != "original")
    torch.testing.assert_close(found(_x()), model(_x()))
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
    found = _fuse(_block(), _x())
    assert found.report.outcome is not None
    assert found.report.outcome.result == ("fused" if fused > 1 else "original")
    assert [row.subject for row in _failed(found.report)] == ["Block without kernels"]


@pytest.mark.usefixtures("machine")
def test_a_whole_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: Any) -> tuple[NumericsRow, ...]:
        return (NumericsRow("net", "float32", 1.0, 0.0, 1e-5, False, "norm"),)

    monkeypatch.setattr(pipeline, "verify_whole", wrong)
    model = _block()
    fused = _fuse(model, _x())
    assert not fused.fused
    assert fused.report.outcome is not None
    assert fused.report.outcome.reason == "the fused model fails a numerics check: norm"
    assert _failed(fused.report)
    assert torch.equal(fused(_x()), model(_x()))


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
    fused = _fuse(_block(), _x())
    assert not fused.fused
    assert {row.measure for row in _failed(fused.report)} == {"norm", "difference"}


@pytest.mark.usefixtures("machine")
def test_the_output_folder_may_be_text(tmp_path: Path) -> None:
    model, folder = _block(), tmp_path / "run"
    planner.capture(model, (_x(),), out=str(folder))
    captured = sorted(path.name for path in (folder / "graphs").glob("*.py"))
    assert captured[0] == "00_captured.py"
    shutil.rmtree(folder)
    planner.audit(model, (_x(),), measure=False, backends=(), out=str(folder))
    assert sorted(path.name for path in (folder / "graphs").glob("*.py")) == captured
    _fuse(model, _x(), out=str(folder))
    assert list((folder / "kernels").glob("gelu_residual*.py"))


@pytest.mark.parametrize("verb", [planner.audit, planner.fuse])
def test_an_unknown_backend_is_refused_before_the_model_is_looked_at(verb: Any) -> None:
    with pytest.raises(UnknownBackend, match="tensorrt"):
        verb(_block().train(), (), backends=("cpu", "tensorrt"))


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
    _fuse(_block(), _x(), compile_peer=peer, progress=titles)
    assert f"race {who}" in titles.stages


@pytest.mark.usefixtures("machine")
def test_a_model_with_nothing_to_fuse_comes_back_as_it_was() -> None:
    """The input of a linear is called like a builtin."""
    model = nn.Linear(24, 24).eval()
    fused = _fuse(model, _x())
    assert not fused.fused
    assert fused.report.fusions == ()
    assert fused.report.outcome is not None
    assert fused.report.outcome.reason == "nothing was fused: 0 of 0 fusions kept"
    assert [row.name for row in fused.report.benchmark.rows] == ["eager", "normalized"]
    assert torch.equal(fused(_x()), model(_x()))


@pytest.mark.usefixtures("machine")
def test_a_model_where_everything_is_refused_says_why() -> None:
    model, x = _block().double(), _x().double()
    fused = _fuse(model, x)
    assert not fused.fused
    assert fused.report.fusions == ()
    reasons = [row.reason for row in fused.report.rejections]
    assert set(reasons) == {"float64 tensors are left to eager: kernels compute in float32"}
    assert {row.rule for row in fused.report.rejections} >= {"gelu_residual", "add_layer_norm"}


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("most", [0, 1])
def test_max_fusions_is_an_upper_bound(most: int) -> None:
    fused = _fuse(_block(), _x(), max_fusions=most)
    assert sum(row.kept for row in fused.report.fusions) == most
    assert fused.fused is bool(most)
    left_out = [row for row in fused.report.rejections if f"--max-fusions {most}" in row.reason]
    assert len(left_out) == 2 - most


@pytest.mark.usefixtures("machine")
def test_a_bfloat16_model_meets_its_own_lines() -> None:
    model, x = _block().bfloat16(), _x().bfloat16()
    fused = _fuse(model, x)
    assert _failed(fused.report) == []
    assert fused.fused
    out = fused(x)
    assert out.dtype is torch.bfloat16
    torch.testing.assert_close(out, model(x), rtol=2e-2, atol=2e-2)


# --- nothing the user has is changed ---------------------------------------------------------


def _counting(m: Any, x: Tensor) -> Tensor:
    m.count.add_(1)
    return gelu(x + m.bias) + m.count


def test_a_program_without_kernels_that_counts_is_verified_as_it_is_returned(machine: Any) -> None:
    machine(0.8, 2.0)
    model = Applied(lambda m, x: (m.count.add_(1), gelu(x + m.bias) * m.count)[1]).eval()
    fused = _fuse(model, _x())
    assert fused.report.outcome is not None
    assert fused.report.outcome.result == "normalized"
    assert _failed(fused.report) == []
    assert "numerics" not in {row.stage for row in fused.report.rejections}
    torch.testing.assert_close(fused(_x()), gelu(_x() + model.bias))


class Warming(nn.Module):
    """Counts its calls in an attribute that is no buffer, and computes otherwise after four."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.calls = nn.Linear(24, 24), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y: Tensor = gelu(self.fc(x)) * 2
        return y if self.calls < 5 else y * 0


def test_a_measured_audit_leaves_attributes_of_the_module_alone() -> None:
    model = Warming().eval()
    planner.audit(model, (_x(),), backends=("cpu",))
    assert model.calls == 0


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("measure", [False, True])
def test_a_counting_buffer_counts_the_users_calls_only(measure: bool) -> None:
    model = Applied(_counting).eval()
    fused = _fuse(model, _x(), measure=measure)
    assert torch.equal(model.count, torch.zeros(24))
    assert torch.equal(fused.count, torch.zeros(24))
    assert fused.fused
    assert _failed(fused.report) == []
    eager = copy.deepcopy(model)
    for _ in range(3):
        torch.testing.assert_close(fused(_x()), eager(_x()))
    assert torch.equal(model.count, torch.zeros(24))


@pytest.mark.usefixtures("machine")
def test_a_counting_buffer_is_left_alone_when_the_original_comes_back(machine: Any) -> None:
    machine(0.5)
    model = Applied(_counting).eval()
    fused = _fuse(model, _x())
    assert torch.equal(fused.count, torch.zeros(24))
    torch.testing.assert_close(fused(_x()), copy.deepcopy(model)(_x()))
    assert torch.equal(model.count, torch.zeros(24))


def test_a_real_race_leaves_buffers_and_inputs_alone(uncompiled: Any) -> None:
    def form(m: Any, x: Tensor) -> Tensor:
        m.count.add_(1)
        x.add_(1)
        return gelu(x + m.bias) + m.count

    model, x = Applied(form).eval(), _x()
    with uncompiled():
        fused = _fuse(model, x)
    assert torch.equal(model.count, torch.zeros(24))
    assert torch.equal(fused.count, torch.zeros(24))
    assert torch.equal(x, _x())
    assert _failed(fused.report) == []


@pytest.mark.usefixtures("machine")
def test_the_random_state_is_as_before() -> None:
    model = _block()
    state = torch.get_rng_state()
    _fuse(model, _x())
    assert torch.equal(torch.get_rng_state(), state)


# --- inputs of many kinds --------------------------------------------------------------------


@pytest.mark.usefixtures("machine")
def test_none_numbers_and_nests_are_inputs_like_any() -> None:
    def form(m: Any, x: Tensor, mask: Any, scale: int, extras: Any) -> Any:
        h = gelu(x * scale + m.bias) + extras["a"][0]
        return {"h": h if mask is None else h * mask, "scale": scale}

    model = Applied(form).eval()
    args = (_x(), None, 2, {"a": [_x() + 1, None]})
    fused = _fuse(model, *args)
    assert fused.fused
    assert _failed(fused.report) == []
    torch.testing.assert_close(fused(*args), model(*args))
    assert fused.fallbacks == 0


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(1, 2, 24))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale * torch.tensor(2.0)


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(24)
        self.register_buffer("table", torch.linspace(0, 1, 24), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(x + self.table)
        return out


@pytest.mark.usefixtures("machine")
def test_a_constant_ahead_of_a_buffer_that_no_state_dict_holds() -> None:
    """torch lists the two as the modules stand, and so does every Llama."""
    model = nn.Sequential(Scaled(), Table()).eval()
    fused = _fuse(model, _x())
    assert fused.fused
    torch.testing.assert_close(fused(_x()), model(_x()))
    assert fused.fallbacks == 0


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("layout", ["transposed", "expanded"])
def test_an_example_in_another_layout_is_verified_fused(layout: str) -> None:
    base = torch.randn(24, 5).t() if layout == "transposed" else _x(1).expand(5, 24)
    fused = _fuse(_block(), base)
    assert fused.fused
    assert _failed(fused.report) == []
    fused(base)
    assert fused.fallbacks == 0


@pytest.mark.usefixtures("machine")
def test_a_program_that_refuses_its_own_example_is_not_used() -> None:
    def forward(m: Any, x: Tensor, y: Tensor) -> Tensor:
        x.add_(0.0)
        return gelu(y + m.bias) * 2

    x = _x()
    fused = _fuse(Applied(forward).eval(), x, x)
    assert not fused.fused
    assert fused.report.outcome is not None
    assert "does not take its own example: inputs share" in fused.report.outcome.reason


@pytest.mark.usefixtures("machine")
def test_a_model_under_autocast_is_verified_and_fused_for_it() -> None:
    model, x = _block(), _x()
    with torch.autocast("cpu", torch.bfloat16):
        fused = _fuse(model, x)
        assert fused.fused
        assert _failed(fused.report) == []
        out, expected = fused(x), model(x)
        assert fused.fallbacks == 0
    assert out.dtype is expected.dtype
    whole = [row for row in fused.report.numerics if row.subject == "Block"]
    assert min(row.eager_error or 0.0 for row in whole) > 1e-4  # eager ran in 16 bits
    with pytest.warns(UserWarning, match="autocast is off, the program was captured under"):
        assert torch.equal(fused(x), model(x))


# --- precision -------------------------------------------------------------------------------


class Rounding(nn.Module):
    """Rounds to bfloat16 between two chains in float32, as a norm of a 16-bit model does."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        rounded = (gelu(self.fc(x)) * x).to(torch.bfloat16)
        return torch.tanh(rounded.float() + x)


@pytest.mark.usefixtures("machine")
def test_high_precision_leaves_casts_out_of_kernel_and_reference() -> None:
    torch.manual_seed(0)
    model, x = Rounding().eval(), _x()
    runs = {name: _fuse(model, x, precision=name) for name in ("exact", "high")}
    truth = model.double()
    exact = torch.tanh(gelu(truth.fc(x.double())) * x.double() + x.double())
    errors = {
        name: torch.linalg.vector_norm(fused(x).double() - exact) for name, fused in runs.items()
    }
    for name, fused in runs.items():
        assert fused.fused
        assert fused.report.precision == name
        assert _failed(fused.report) == []
        assert ("to_copy" in str(fused.plan.chosen[0].candidate.lowered.region)) == (
            name == "exact"
        )
    assert errors["high"] < 1e-5 < 1e-3 < errors["exact"]
    (row,) = runs["high"].report.fusions
    assert set(row.unrounded) < set(row.nodes)
    assert len(row.unrounded) == 1
    assert all(not row.unrounded for row in runs["exact"].report.fusions)


def test_an_unknown_precision_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownPrecision, match="exact or high"):
        _fuse(_block(), _x(), precision="low")


# --- 8-bit storage ---------------------------------------------------------------------------


class Quantized(nn.Module):
    """A weight stored in 8 bits with a scale a row, an 8-bit input, and an 8-bit result."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.randn(16, 24)
        self.register_buffer("scale", weight.abs().amax(1, keepdim=True) / 448)
        self.register_buffer("codes", (weight / self.scale).to(torch.float8_e4m3fn))

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        weight = self.codes.to(torch.float32) * self.scale
        h = nn.functional.linear(x, weight) + residual.to(torch.float32)
        scale = h.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 448
        return (h / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


@pytest.mark.usefixtures("machine")
def test_8_bit_storage_is_read_and_written_by_kernels() -> None:
    torch.manual_seed(0)
    model, x = Quantized().eval(), _x()
    residual = torch.randn(5, 16).to(torch.float8_e5m2)
    fused = _fuse(model, x, residual)
    assert fused.fused
    assert _failed(fused.report) == []
    assert "float8_e4m3fn" in {row.dtype for row in fused.report.numerics}
    nodes = [row.nodes for row in fused.report.fusions]
    assert [len(names) for names in nodes] == [2, 9]
    codes, scale = fused(x, residual)
    expected, expected_scale = model(x, residual)
    assert codes.dtype is torch.float8_e4m3fn
    torch.testing.assert_close(scale, expected_scale)
    apart = codes.view(torch.uint8).int() - expected.view(torch.uint8).int()
    assert apart.abs().max() <= 1


# --- refusals --------------------------------------------------------------------------------


def test_a_model_in_training_mode_is_refused_with_advice() -> None:
    with pytest.raises(TrainingMode, match=r"model\.eval\(\)"):
        _fuse(_block().train(), _x())


@pytest.mark.parametrize("verb", [planner.fuse, planner.audit, pipeline.rank, pipeline.bench])
def test_a_model_on_another_device_than_asked_is_refused(verb: Any) -> None:
    with pytest.raises(WrongDevice, match=r"lies on cpu, not on cuda.*model\.to\('cuda'\)"):
        verb(_block(), (_x(),), device="cuda")


def test_weights_and_inputs_on_several_devices_are_refused() -> None:
    model = _block()
    model.norm.to("meta")
    with pytest.raises(WrongDevice, match=r"several devices \(cpu, meta\)"):
        _fuse(model, _x())


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
    report = planner.audit(_block(), (_x(),), backends=("cpu", "onnx"), measure=False)
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
    report = planner.audit(_block(), (_x(),), backends=("cpu",))
    assert report.coverage["cpu"].by_time == pytest.approx(1.0)
    assert report.profile.kind == "measured"


def test_rank_orders_operators_by_total_time(tmp_path: Path) -> None:
    report = pipeline.rank(_block(), (_x(),), name="net", out=tmp_path)
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
    report = pipeline.bench(_block(), (_x(),), compile_peer=False)
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
    monkeypatch.setattr(rewriting, "interleaved", _made_up)
    model, x = Rewritable().eval(), torch.randn(2, 8, 9)
    model.norm.running_var.uniform_(0.5, 2)
    fused = _fuse(model, x)
    assert not _failed(fused.report)
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
    report = _fuse(Rewritable().eval(), torch.randn(2, 8, 9)).report
    ops = {row.op for row in report.ops}
    assert "aten.matmul.default" in ops
    assert "aten.scaled_dot_product_attention.default" not in ops


# --- random operators --------------------------------------------------------------------------


def _noisy(m: Any, x: Tensor) -> Any:
    doubled = x * 2
    drawn = torch.bernoulli(torch.sigmoid(doubled))
    return drawn, gelu(doubled + torch.rand(5, 24) + m.bias)


@pytest.mark.usefixtures("machine")
def test_random_operators_draw_as_in_eager_and_leave_the_users_state() -> None:
    model, x = Applied(_noisy).eval(), _x()
    before = torch.get_rng_state()
    fused = _fuse(model, x)
    assert torch.equal(torch.get_rng_state(), before)
    assert fused.report.outcome.result == "fused"
    whole = [row for row in fused.report.numerics if row.subject == "Applied"]
    drawn = [row.error for row in whole if row.case.startswith("output 0")]
    assert drawn == [0.0] * len(drawn)
    torch.manual_seed(3)
    expected = model(x)
    torch.manual_seed(3)
    for out, theirs in zip(fused(x), expected, strict=True):
        torch.testing.assert_close(out, theirs)
