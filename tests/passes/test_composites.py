"""What was taken apart comes back as it was where its parts are all still there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from planner.graph.export import capture, second_program
from planner.passes.composites import PART, composites_in, put_together, shares_of
from planner.passes.normalize import NORMALIZE
from planner.passes.runner import run_passes
from planner.passes.take_apart import take_apart

IMAGE = torch.randn(3, 6, 5, 7)
SCORES, CLASSES = torch.randn(9, 11), torch.tensor([0, 10, 3, -100, 4, 4, -100, 9, 1])


class Called(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function, self.norm = function, nn.BatchNorm2d(6)

    def forward(self, *args: Tensor) -> Any:
        return self.function(self.norm, *args)


def apart(function: Callable[..., Any], *args: Tensor) -> Any:
    program = capture(Called(function).eval(), args).program
    run_passes(program, NORMALIZE)
    return program


def operators(program: Any) -> list[str]:
    return [str(n.target) for n in program.graph.nodes if n.op == "call_function"]


FORMS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "batch norm": (lambda norm, x: norm(x), (IMAGE,)),
    "instance norm": (lambda _, x: F.instance_norm(x), (IMAGE,)),
    "var_mean": (lambda _, x: torch.var_mean(x, -1, keepdim=True), (IMAGE,)),
    "var_mean of which one result is read": (lambda _, x: torch.var_mean(x, -1)[0], (IMAGE,)),
    "aminmax": (lambda _, x: (lambda y: y.max * 2 - y.min)(x.aminmax(dim=2)), (IMAGE,)),
    "max": (lambda _, x: x.max(1).values.exp(), (IMAGE,)),
    "glu": (lambda _, x: F.glu(x, 1), (IMAGE,)),
    "split": (lambda _, x: [part * 2 for part in (x + 1).split(2, 1)], (IMAGE,)),
    "chunk": (lambda _, x: [y * 2 for y in (x + 1).chunk(2, -1)], (IMAGE,)),
    "cross entropy": (lambda _, x, y: F.cross_entropy(x, y), (SCORES, CLASSES)),
    "two cross entropies": (
        lambda _, x, y: F.cross_entropy(x, y) + F.cross_entropy(x * 2, y, reduction="sum"),
        (SCORES, CLASSES),
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_it_comes_back(name: str) -> None:
    function, args = FORMS[name]
    program = apart(function, *args)
    whole = operators(program)
    run_passes(program, [("take_apart", take_apart)])
    assert operators(program) != whole
    assert any(PART in node.meta for node in program.graph.nodes)
    (record,) = run_passes(second_program(program), [("put_together", put_together)])
    assert record.notes
    run_passes(program, [("put_together", put_together)])
    program.validate()
    assert sorted(operators(program)) == sorted(whole)
    assert not any(PART in node.meta for node in program.graph.nodes)
    pairs = zip(
        pytree.tree_leaves(program.module()(*args)),
        pytree.tree_leaves(Called(function).eval()(*args)),
        strict=True,
    )
    for out, wanted in pairs:
        torch.testing.assert_close(out, wanted, rtol=0, atol=0)


def test_it_stays_apart_where_a_part_is_gone() -> None:
    program = apart(*_cross_entropy())
    run_passes(program, [("take_apart", take_apart)])
    (gather,) = (n for n in program.graph.nodes if str(n.target) == "aten.gather.default")
    del gather.meta[PART]  # as a kernel has none that took its place
    before = operators(program)
    assert run_passes(program, [("put_together", put_together)])[0].notes == ()
    assert operators(program) == before


def test_it_stays_apart_where_something_else_reads_a_part() -> None:
    program = apart(*_cross_entropy())
    run_passes(program, [("take_apart", take_apart)])
    (logs,) = (n for n in program.graph.nodes if str(n.target) == "aten.logsumexp.default")
    (output,) = (n for n in program.graph.nodes if n.op == "output")
    output.args = ((output.args[0][0], logs),)
    assert put_together(program) == ()


def test_what_has_taken_the_place_of_its_input_is_read() -> None:
    program = apart(lambda _, x, y: F.cross_entropy(x.tanh(), y), SCORES, CLASSES)
    run_passes(program, [("take_apart", take_apart)])
    (tanh,) = (n for n in program.graph.nodes if str(n.target) == "aten.tanh.default")
    with program.graph.inserting_after(tanh):
        other = program.graph.call_function(torch.ops.aten.sin.default, (tanh.args[0],))
    other.meta = dict(tanh.meta)
    tanh.replace_all_uses_with(other)
    run_passes(program, [("put_together", put_together)])
    out = program.module()(SCORES, CLASSES)
    torch.testing.assert_close(out, F.cross_entropy(SCORES.sin(), CLASSES), rtol=0, atol=0)


def test_the_parts_shares_are_of_the_bytes_that_they_move() -> None:
    program = apart(*_cross_entropy())
    run_passes(program, [("take_apart", take_apart)])
    shares = shares_of(program.graph)
    assert {name for name, _ in shares.values()} == {"cross_entropy_loss"}
    assert sum(share for _, share in shares.values()) == pytest.approx(1.0)
    by_op = {str(n.target): shares[n.name][1] for n in program.graph.nodes if n.name in shares}
    assert by_op["aten.logsumexp.default"] > by_op["aten.ne.Scalar"]


def test_parts_of_one_operator_are_found_together() -> None:
    function, args = FORMS["two cross entropies"]
    program = apart(function, *args)
    run_passes(program, [("take_apart", take_apart)])
    found = composites_in(program.graph.nodes)
    assert [item.name for item, _ in found] == ["cross_entropy_loss", "cross_entropy_loss_1"]
    assert all(len(parts) == len(item.targets) for item, parts in found)


def _cross_entropy() -> tuple[Any, ...]:
    function, args = FORMS["cross entropy"]
    return (function, *args)
