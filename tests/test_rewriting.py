"""Rewrites that must win a race first stay only when they do not lose it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from planner.fusion.module import FusedModule
from planner.graph.export import capture
from planner.graph.twin import twin_of
from planner.passes.runner import count_operators
from planner.rewriting import race_on, rewritten
from planner.timing import Comparison

SDPA = torch.ops.aten.scaled_dot_product_attention.default


class Attention(nn.Module):
    """Causal attention in parts, with an exponential written twice."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        hidden = torch.ones(9, 9, dtype=torch.bool).triu(1)
        scores = (q.exp() @ k.mT).masked_fill(hidden, -torch.inf)
        return scores.softmax(-1) @ v * q.exp()


def inputs() -> tuple[Tensor, ...]:
    return torch.randn(2, 3, 9, 8), torch.randn(2, 3, 9, 8), torch.randn(2, 3, 9, 8)


def targets(program: ExportedProgram) -> list[Any]:
    return [node.target for node in program.graph.nodes if node.op == "call_function"]


def test_a_rewrite_that_is_not_slower_stays(tmp_path: Path) -> None:
    module, args = Attention().eval(), inputs()
    captured = capture(module, args).program
    before = count_operators(captured)
    program, records = rewritten(captured, lambda *_: Comparison(1.2, 0.9, 1.4), tmp_path, 3)
    assert SDPA in targets(program)
    assert count_operators(captured) == before
    record = next(r for r in records if r.name == "written_out_attention")
    assert record.notes[-1] == "kept: 1.200x as fast as without"
    first = next(r for r in records if r.name == "common_subexpressions")
    assert (first.nodes_before, first.nodes_after) == (before, before - 1)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == [f"{n:02d}_{r.name}.py" for n, r in enumerate(records, 3)]
    other = inputs()
    torch.testing.assert_close(FusedModule(twin_of(module), program)(*other), module(*other))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Comparison(0.8, 0.7, 0.9), "taken back: 0.800x"),
        (None, "taken back: it could not be raced"),
    ],
)
def test_a_rewrite_that_loses_is_taken_back(found: Comparison | None, said: str) -> None:
    captured = capture(Attention().eval(), inputs()).program
    program, records = rewritten(captured, lambda *_: found)
    assert SDPA not in targets(program)
    assert "shown" not in "".join(program.constants)
    record = next(r for r in records if r.name == "written_out_attention")
    assert record.notes[-1] == said
    assert record.nodes_before == record.nodes_after


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(6, 9), nn.Linear(6, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.gate(x).sigmoid() * self.up(x)


@pytest.mark.parametrize(("low", "count"), [(0.99, 2), (1.01, 1)])
def test_a_copy_of_weights_must_win(low: float, count: int) -> None:
    captured = capture(Gated().eval(), (torch.randn(4, 6),)).program
    program, records = rewritten(captured, lambda *_: Comparison(1.1, low, 1.2))
    assert targets(program).count(torch.ops.aten.linear.default) == count
    record = next(r for r in records if r.name == "merge_linears")
    assert record.notes[-1].startswith("kept" if count == 1 else "taken back")


def test_without_something_to_rewrite_nothing_is_raced() -> None:
    captured = capture(nn.Sequential(nn.Linear(3, 3)).eval(), (torch.randn(2, 3),)).program

    def race(*_: ExportedProgram) -> Comparison:
        raise AssertionError("nothing has changed")

    program, records = rewritten(captured, race)
    assert targets(program) == targets(captured)
    assert not any(record.notes for record in records)


def test_a_race_runs_both_and_leaves_the_inputs() -> None:
    module, args = Attention().eval(), inputs()
    given = [x.clone() for x in args]
    program = capture(module, args).program
    race = race_on(lambda p: FusedModule(twin_of(module), p), args, {}, "cpu")
    found = race(program, program)
    assert found is not None
    assert found.low <= found.ratio <= found.high
    assert all(torch.equal(x, y) for x, y in zip(args, given, strict=True))


def test_programs_that_do_not_take_the_call_are_not_raced() -> None:
    module = Attention().eval()
    program = capture(module, inputs()).program
    q, k, v = (x[:1] for x in inputs())
    race = race_on(lambda p: FusedModule(twin_of(module), p), (q, k, v), {}, "cpu")
    assert race(program, program) is None
