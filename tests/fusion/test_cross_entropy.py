"""The cross entropy of rows as torch's losses are taken apart and as models write it, and what only
looks like one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fusion_kernels.emit.source import Provenance, emit
from fusion_kernels.library import define
from fusion_kernels.rules import RULES
from planner.fusion.match import match_rules
from planner.fusion.plan import write_kernel
from planner.fusion.regions import find_regions
from planner.fusion.rewrite import replace_regions
from planner.graph.export import capture
from planner.passes.normalize import NORMALIZE
from planner.passes.runner import run_passes
from planner.passes.take_apart import take_apart
from planner.verify import verify_region


def _drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _targets(rows: int, classes: int) -> Tensor:
    return torch.randint(0, classes, (rows,), generator=torch.Generator().manual_seed(rows))


LOGITS, TARGET = _drawn(9, 257), _targets(9, 257)
IGNORING = TARGET.clone()
IGNORING[::3] = -100


class Called(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


def _program(function: Callable[..., Any], *args: Tensor) -> Any:
    program = capture(Called(function).eval(), args).program
    run_passes(program, (*NORMALIZE, ("take_apart", take_apart)))
    return program


def _named(function: Callable[..., Any], *args: Tensor) -> tuple[list[str], list[str]]:
    matches, missed = match_rules(_program(function, *args).graph, RULES)
    reasons = [item.reason for item in missed if item.rule == "cross_entropy"]
    return [m.variant for m in matches if m.rule == "cross_entropy"], reasons


LOSSES: dict[str, Callable[..., Any]] = {
    "cross_entropy": F.cross_entropy,
    "sum": lambda x, y: F.cross_entropy(x, y, reduction="sum"),
    "each": lambda x, y: F.cross_entropy(x, y, reduction="none"),
    "of float": lambda x, y: F.cross_entropy(x.float(), y),
    "nll": lambda x, y: F.nll_loss(F.log_softmax(x, -1), y),
    "nll in float": lambda x, y: F.nll_loss(F.log_softmax(x, 1, dtype=torch.float32), y),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("target", [TARGET, IGNORING], ids=["all", "ignoring"])
@pytest.mark.parametrize("name", LOSSES)
def test_torchs_losses(name: str, target: Tensor, dtype: torch.dtype, tmp_path: Path) -> None:
    form, args = LOSSES[name], (LOGITS.to(dtype), target)
    program = _program(form, *args)
    matches, _ = match_rules(program.graph, RULES)
    assert [m.variant for m in matches if m.rule == "cross_entropy"] == ["cross_entropy"]
    plans, _ = find_regions(program.graph, matches, lambda node: node.name)
    (own,) = (plan for plan in plans if plan.rule == "cross_entropy")
    floats = [i for i in own.lowered.region.inputs if i.shape[-1] == 257 or i.table]
    assert {item.dtype for item in floats} == {str(dtype).removeprefix("torch.")}
    source = emit(own.lowered.region, Provenance("this test"))
    operator = define(source, write_kernel(source, tmp_path))
    replace_regions(program.graph, [(own.lowered, operator.overload)])
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
    out, eager, exact = program.module()(*args), form(*args), form(args[0].double(), target)
    assert out.dtype == eager.dtype
    assert (out.double() - exact).abs().max() <= 1e-5 + 1.01 * (eager.double() - exact).abs().max()


def test_its_kernel_keeps_the_contract(tmp_path: Path) -> None:
    program = _program(F.cross_entropy, LOGITS, IGNORING)
    matches, _ = match_rules(program.graph, RULES)
    plans, _ = find_regions(program.graph, matches, lambda node: node.name)
    (own,) = (plan for plan in plans if plan.rule == "cross_entropy")
    source = emit(own.lowered.region, Provenance("this test"))
    operator = define(source, write_kernel(source, tmp_path))
    failed = [r for r in verify_region(own.lowered, operator, "cpu", seed=3) if not r.passed]
    assert not failed


WRITTEN: list[tuple[str, Callable[..., Any]]] = [
    (
        "cross_entropy",
        lambda x, y: x.logsumexp(-1) - x.gather(-1, y.unsqueeze(-1)).squeeze(-1),
    ),
    ("cross_entropy", lambda x, y: x.logsumexp(-1, True) - x.gather(-1, y[:, None])),
    (
        "cross_entropy",
        lambda x, y: x.float().logsumexp(-1) - x.gather(-1, y[:, None]).squeeze(-1).float(),
    ),
    (
        "cross_entropy",
        lambda x, y: (x.logsumexp(1) - x.gather(1, y[:, None]).squeeze(1)).masked_fill(y == 3, 0.0),
    ),
    (
        "cross_entropy",
        lambda x, y: torch.where(y != 3, x.logsumexp(1) - x.gather(1, y[:, None]).squeeze(1), 0.0),
    ),
]


@pytest.mark.parametrize(("name", "form"), WRITTEN)
def test_written_out(grow: Any, rewritten: Any, name: str, form: Callable[..., Any]) -> None:
    grown = grow(form, LOGITS, TARGET)
    assert [(m.rule, m.variant) for m in grown.matches] == [("cross_entropy", name)]
    torch.testing.assert_close(rewritten(grown)(LOGITS, TARGET), form(LOGITS, TARGET))


@pytest.mark.parametrize("rows", [1, 2])
def test_few_rows_and_open_strides(grow: Any, rewritten: Any, rows: int) -> None:
    form = WRITTEN[0][1]
    x = _drawn(rows, 600)[:, ::2][:, 11:]
    grown = grow(form, x, _targets(rows, 289))
    assert len(grown.matches) == 1
    torch.testing.assert_close(
        rewritten(grown)(x, _targets(rows, 289)), form(x, _targets(rows, 289))
    )


def _over_the_rows(x: Tensor, at: Tensor) -> Tensor:
    return x.logsumexp(0) - x.gather(1, at).squeeze(1)


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (
            lambda x, y: x.logsumexp(1) - (x * 2).gather(1, y[:, None]).squeeze(1),
            "logits is two different values",
        ),
        (
            lambda x, y: _over_the_rows(x[:, :9], y[:, None] % 9),
            "the logsumexp is over dimensions [0] of 2, not over the last one",
        ),
        (lambda x, y: x.logsumexp(1) + x.gather(1, y[:, None]).squeeze(1), None),
        (lambda x, y: x.exp().sum(1) - x.gather(1, y[:, None]).squeeze(1), None),
        (lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1), None),
        (lambda x, y: F.cross_entropy(x, y, weight=x[0].exp()), None),
        (lambda x, y: F.nll_loss(F.log_softmax(x, 0), y), None),
        (lambda x, y: F.nll_loss(x, y), None),
    ],
)
def test_what_is_none(form: Callable[..., Any], reason: str | None) -> None:
    """A row of another tensor, over other dimensions, smoothed, weighted, of other logits."""
    found, reasons = _named(form, LOGITS, TARGET)
    assert found == []
    assert reason is None or any(reason in said for said in reasons), reasons


def test_several_targets_of_a_row_are_none() -> None:
    def form(x: Tensor, y: Tensor) -> Tensor:
        return x.logsumexp(1, True) - x.gather(1, y[:, None].expand(9, 4))

    assert _named(form, LOGITS, TARGET)[0] == []


@pytest.mark.parametrize("fill", [1.0, -100.0])
def test_another_fill_is_no_part_of_it(fill: float) -> None:
    """The row itself is, without what is put in place of those that are to be ignored."""

    def form(x: Tensor, y: Tensor) -> Tensor:
        row = x.logsumexp(1) - x.gather(1, y[:, None]).squeeze(1)
        return torch.where(y != 3, row, fill)

    assert _named(form, LOGITS, TARGET)[0] == ["cross_entropy"]
