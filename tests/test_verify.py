"""The checks catch what they are there for: planted bugs in the emitted text and in the CPU region;
and they excuse nothing but what float32 itself cannot do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import gelu, layer_norm

from fusion_kernels import library
from fusion_kernels.cpu import CpuRegion
from fusion_kernels.emit.source import Provenance, emit
from fusion_kernels.evaluate import evaluate
from fusion_kernels.ir import Region
from fusion_kernels.library import FusedOperator, define
from fusion_kernels.rules import RULES
from planner.cost.devices import Device
from planner.fusion import contest, settle
from planner.fusion.lowered import LoweredRegion
from planner.fusion.match import match_rules
from planner.fusion.plan import make_plan, write_kernel
from planner.fusion.regions import find_regions
from planner.pipeline import capture
from planner.progress import SILENT
from planner.verify import verify_region

Bug = Callable[[tuple[Tensor, ...], Callable[..., Tensor]], Tensor]
ROWS, COLS = 6, 20


def _run(region: Region, reuse: int | None, bug: Bug) -> CpuRegion:
    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        out = bug(tensors, lambda *given: evaluate(region, given)[0])
        if reuse is not None:
            return (tensors[reuse].copy_(out),)
        return (out, *evaluate(region, tensors)[1:])

    return CpuRegion(run, "not compiled in this test")


def _none(tensors: tuple[Tensor, ...], right: Callable[..., Tensor]) -> Tensor:
    return right(*tensors)


@pytest.fixture(autouse=True)
def plant(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Bug], None]]:
    """Puts a bug into every CPU region from now on; without, regions run operation by operation."""

    def plant_bug(bug: Bug) -> None:
        for operator in library._DEFINED.values():
            operator._cpu.clear()
        monkeypatch.setattr(
            library, "compile_region", lambda region, reuse=None: _run(region, reuse, bug)
        )

    plant_bug(_none)
    yield plant_bug
    for operator in library._DEFINED.values():
        operator._cpu.clear()


@dataclass(frozen=True)
class Subject:
    """A region with its operator, whose text may be changed."""

    lowered: LoweredRegion
    operator: FusedOperator

    def verify(self) -> Any:
        return verify_region(self.lowered, self.operator, "cpu", seed=0)

    def failed(self, target: str) -> set[str]:
        """Measures that failed in one way of running."""
        rows = self.verify()
        assert all(row.passed for row in rows if not row.case.startswith(target))
        return {row.measure for row in rows if row.case.startswith(target) and not row.passed}

    def edit(self, change: Callable[[str], str]) -> None:
        text = self.operator.path.read_text()
        edited = change(text)
        assert edited != text
        self.operator.path.write_text(edited)


def _subject(function: Callable[..., Any], folder: Path, *tensors: Tensor) -> Subject:
    module = make_fx(function, tracing_mode="fake", pre_dispatch=True)(*tensors)
    matches, _ = match_rules(module.graph, RULES)
    (plan,), _ = find_regions(module.graph, matches, lambda node: node.name)
    source = emit(plan.lowered.region, Provenance("this test"))
    return Subject(plan.lowered, define(source, write_kernel(source, folder)))


def _bias_gelu(x: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    return gelu(x + bias) + residual


def _norm(x: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    return layer_norm(x + bias + residual, [COLS], bias)


def _inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    sizes = ((ROWS, COLS), (COLS,), (ROWS, COLS))
    return tuple(torch.randn(size).to(dtype) for size in sizes)


FORMS = {"gelu": _bias_gelu, "norm": _norm}


@pytest.fixture
def no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of the CPU region alone: the kernel's text is not run."""
    from planner import verify

    def launcher(path: Path, _: str) -> Callable[..., Any]:
        (operator,) = [o for o in library._DEFINED.values() if o.path == path]

        def run(*tensors: Tensor) -> Any:
            outs = evaluate(operator.source.region, tensors)
            return outs[0] if len(outs) == 1 else outs

        return run

    monkeypatch.setattr(verify, "interpreted", launcher)


@pytest.fixture(params=FORMS)
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Subject:
    return _subject(FORMS[request.param], tmp_path, *_inputs())


def _zeros(tensors: tuple[Tensor, ...], right: Callable[..., Tensor]) -> Tensor:
    return torch.zeros_like(right(*tensors))


def _last_column(tensors: tuple[Tensor, ...], right: Callable[..., Tensor]) -> Tensor:
    out = right(*tensors).clone()
    out[..., -1] = 0.5
    return out


def _one_element(tensors: tuple[Tensor, ...], right: Callable[..., Tensor]) -> Tensor:
    out = right(*tensors).clone()
    if out.numel():
        flat = out.view(-1)
        flat[flat.numel() // 2] += 1e-3
    return out


def _dropped_tail(tensors: tuple[Tensor, ...], right: Callable[..., Tensor]) -> Tensor:
    out = right(*tensors).clone()
    flat = out.view(-1)
    flat[flat.numel() // 16 * 16 :] = 0
    return out


def _missing_bias(tensors: tuple[Tensor, ...], right: Callable[..., Tensor]) -> Tensor:
    return right(*(torch.zeros_like(t) if t.dim() == 1 else t for t in tensors))


BUGS = [_zeros, _last_column, _one_element, _dropped_tail, _missing_bias]


def test_a_right_kernel_passes_in_every_way_it_runs(subject: Subject) -> None:
    rows = subject.verify()
    assert all(row.passed for row in rows)
    ways = {row.case.rsplit(", ", 1)[0] for row in rows}
    assert {"CPU region, eager", "Triton, interpreted"} <= ways
    assert {row.subject for row in rows} == {subject.operator.name}
    assert {"element", "row", "nonfinite"} <= {row.measure for row in rows}


def test_the_worst_case_of_all_draws_is_named(subject: Subject) -> None:
    (row,) = [r for r in subject.verify() if r.measure == "row" and r.case.startswith("Triton")]
    assert row.error is not None
    assert 0 < row.error <= row.limit == 1e-5
    assert row.case.rpartition(", ")[2]


@pytest.mark.usefixtures("no_interpreter")
@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_in_the_cpu_region_is_caught(subject: Subject, plant: Any, bug: Bug) -> None:
    plant(bug)
    assert subject.failed("CPU region")


WRAPPED = """

def {name}(*tensors):
    out = _right({given})
    flat = out.view(-1)
    if flat.numel():
        {change}
    return out
"""


CHANGES = {
    "all zeros": ("*tensors", "out.zero_()"),
    "a wrong last column": ("*tensors", "out[..., -1] = 0.5"),
    "one wrong element": ("*tensors", "flat[flat.numel() // 2] += 1e-3"),
    "a dropped tail": ("*tensors", "flat[flat.numel() // 16 * 16:] = 0"),
    "a missing bias": ("*(torch.zeros_like(t) if t.dim() == 1 else t for t in tensors)", "pass"),
}


@pytest.mark.parametrize("bug", CHANGES)
def test_a_bug_in_the_emitted_launcher_is_caught(subject: Subject, bug: str) -> None:
    name, (given, change) = subject.operator.source.name, CHANGES[bug]
    wrapper = WRAPPED.format(name=name, given=given, change=change)
    subject.edit(lambda text: text.replace(f"def {name}(", "def _right(") + wrapper)
    assert subject.failed("Triton, interpreted")


EDITS = [
    (_bias_gelu, "tl.load(bias", "0.0 * tl.load(bias"),
    (_bias_gelu, "* 0.5", "* 0.5001"),
    (_norm, "/ n_cols", "/ BLOCK_SIZE"),
    (_norm, "1e-05", "1e-03"),
]


@pytest.mark.parametrize(("form", "old", "new"), EDITS, ids=[e[2] for e in EDITS])
def test_a_bug_in_the_kernels_own_lines_is_caught(
    tmp_path: Path, form: Any, old: str, new: str
) -> None:
    subject = _subject(form, tmp_path, *_inputs())
    subject.edit(lambda text: text.replace(old, new))
    assert subject.failed("Triton, interpreted")


def test_a_bug_in_how_programs_share_the_work_is_caught(tmp_path: Path) -> None:
    """Small draws would fit one program."""
    for form in FORMS.values():
        sizes = ((400, COLS), (COLS,), (400, COLS))
        subject = _subject(form, tmp_path, *(torch.randn(size) for size in sizes))
        subject.edit(lambda text: text.replace("tl.program_id(0)", "(tl.program_id(0) * 0)"))
        assert subject.failed("Triton, interpreted")


@pytest.mark.usefixtures("no_interpreter")
def test_half_precision_is_held_to_one_rounding(tmp_path: Path, plant: Any) -> None:
    subject = _subject(_bias_gelu, tmp_path, *_inputs(torch.bfloat16))
    assert all(row.passed for row in subject.verify())

    def rounds_between(tensors: tuple[Tensor, ...], _: Any) -> Tensor:
        x, bias, residual = tensors
        return (gelu(x + bias) + residual) * 1.02

    plant(rounds_between)
    assert "element" in subject.failed("CPU region")


@pytest.mark.usefixtures("no_interpreter")
@pytest.mark.parametrize("wrong", [0, 1])
def test_every_output_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: int
) -> None:
    def form(x: Tensor, bias: Tensor, residual: Tensor) -> Any:
        h = x + bias
        return h, layer_norm(h + residual, [COLS])

    def one_is_wrong(region: Region, _: int | None = None) -> CpuRegion:
        def run(*tensors: Tensor) -> tuple[Tensor, ...]:
            outs = list(evaluate(region, tensors))
            outs[wrong] = torch.zeros_like(outs[wrong])
            return tuple(outs)

        return CpuRegion(run, "not compiled in this test")

    subject = _subject(form, tmp_path, *_inputs())
    assert all(row.passed for row in subject.verify())
    monkeypatch.setattr(library, "compile_region", one_is_wrong)
    subject.operator._cpu.clear()
    assert subject.failed("CPU region")


@pytest.mark.usefixtures("no_interpreter")
def test_the_form_that_writes_over_an_input_is_verified_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def form(x: Tensor, w: Tensor, residual: Tensor) -> Tensor:
        return residual + gelu(x @ w)

    tensors = (torch.randn(ROWS, COLS), torch.randn(COLS, COLS), torch.randn(ROWS, COLS))
    subject = _subject(form, tmp_path, *tensors)
    assert any(", in place, " in row.case for row in subject.verify())

    def wrong_in_place(region: Region, reuse: int | None = None) -> CpuRegion:
        return _run(region, reuse, _none if reuse is None else _zeros)

    monkeypatch.setattr(library, "compile_region", wrong_in_place)
    subject.operator._cpu.clear()
    assert subject.failed("CPU region, eager, in place")


def _cancelling(x: Tensor, residual: Tensor) -> Tensor:
    """Float32 keeps four digits of the residual, in eager as well."""
    return (x * 1000 + residual) - x * 1000


def test_what_float32_itself_cannot_do_is_held_against_eager(tmp_path: Path) -> None:
    subject = _subject(_cancelling, tmp_path, *(torch.randn(ROWS, COLS) for _ in range(2)))
    rows = subject.verify()
    assert all(row.passed for row in rows)
    assert {"largest", "rms"} <= {row.measure for row in rows}


@pytest.mark.usefixtures("no_interpreter")
def test_more_than_eagers_error_is_not_excused(tmp_path: Path, plant: Any) -> None:
    subject = _subject(_cancelling, tmp_path, *(torch.randn(ROWS, COLS) for _ in range(2)))

    def twelve_steps_off(tensors: tuple[Tensor, ...], right: Callable[..., Tensor]) -> Tensor:
        out = right(*tensors)
        step = 12e3 * torch.finfo(torch.float32).eps * tensors[0].abs()
        return torch.where(out.isfinite(), out + step, out)

    plant(twelve_steps_off)
    assert subject.failed("CPU region") & {"largest", "rms"}


@pytest.mark.usefixtures("no_interpreter")
def test_the_clause_is_closed_to_well_conditioned_regions(tmp_path: Path, plant: Any) -> None:
    subject = _subject(_bias_gelu, tmp_path, *_inputs())
    plant(lambda tensors, right: right(*tensors) * (1 + 4e-5))
    failed = subject.failed("CPU region")
    assert failed & {"element", "row"}
    assert not failed & {"largest", "rms"}


class Chain(nn.Module):
    """A chain that one kernel replaces."""

    def forward(self, x: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
        return _bias_gelu(x, bias, residual)


@pytest.mark.usefixtures("no_interpreter")
@pytest.mark.parametrize("bug", BUGS)
def test_a_caught_kernel_is_rejected_and_never_used(
    tmp_path: Path, plant: Any, monkeypatch: pytest.MonkeyPatch, bug: Bug
) -> None:
    def no_race(*_: Any, **__: Any) -> Any:
        raise AssertionError("a wrong kernel was raced")

    monkeypatch.setattr(contest, "interleaved", no_race)
    # Its parts may be right, and are no subject here.
    monkeypatch.setattr(settle, "_ROUNDS", 0)
    plant(bug)
    program = capture(Chain().eval(), _inputs()).program
    device = Device("cpu", "a processor", ("cpu",), {})
    plan = make_plan(program, device, "cpu", tmp_path, max_fusions=None, seed=0, progress=SILENT)
    assert plan.chosen == ()
    (rejection,) = [r for r in plan.rejected if r.stage == "numerics"]
    assert rejection.rule == "gelu_residual"
    assert "is over its limit (CPU region" in rejection.reason
    assert any(not row.passed for row in plan.numerics)
