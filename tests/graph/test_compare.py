"""A program that differs from eager is never used: differences planted in the export itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import planner
from planner.graph import export
from planner.graph.compare import require_equal
from planner.graph.errors import CaptureDiffers

aten = torch.ops.aten


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = torch.relu(self.linear(x))
        return {"first": y * 2, "second": y + 1}


def planted(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None]) -> None:
    """Let the export return a program that `change` has spoilt."""
    honest = export._decomposed

    def spoilt(program: Any) -> Any:
        made = honest(program)
        change(made)
        made.graph_module.recompile()
        return made

    monkeypatch.setattr(export, "_decomposed", spoilt)


def node(program: Any, target: Any) -> Any:
    return next(n for n in program.graph.nodes if n.target == target)


def test_a_wrong_operator_is_found_and_its_output_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(program: Any) -> None:
        node(program, aten.add.Tensor).target = aten.sub.Tensor

    planted(monkeypatch, change)
    with pytest.raises(CaptureDiffers, match=r"in output '\['second'\]': norm-wise error"):
        planner.capture(Model().eval(), (torch.randn(3, 4),))


def test_a_lost_operator_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(program: Any) -> None:
        relu = node(program, aten.relu.default)
        relu.replace_all_uses_with(relu.args[0])

    planted(monkeypatch, change)
    with pytest.raises(CaptureDiffers):
        planner.capture(Model().eval(), (torch.randn(3, 4),))


def test_swapped_outputs_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(program: Any) -> None:
        output = node(program, "output")
        output.args = (tuple(reversed(output.args[0])),)

    planted(monkeypatch, change)
    with pytest.raises(CaptureDiffers):
        planner.capture(Model().eval(), (torch.randn(3, 4),))


def test_a_missed_write_to_a_buffer_does_not_hide_in_the_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.total.add_(x) * 2

    def change(program: Any) -> None:
        add = node(program, aten.add.Tensor)
        node(program, aten.mul.Tensor).args = (add.args[0], 2)

    planted(monkeypatch, change)
    with pytest.raises(CaptureDiffers):
        planner.capture(Adds().eval(), (torch.ones(3),))


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("expected", "actual", "reason"),
    [
        ([1.0, 2.0], [1.0, 2.001], "norm-wise"),
        ([0.0, 0.0], [0.0, 1e-3], "norm-wise"),
        ([1.0, INF], [1.0, 5.0], "infinity"),
        ([1.0, INF], [1.0, -INF], "infinity"),
        ([1.0, 5.0], [1.0, INF], "infinity"),
        ([1.0, NAN], [1.0, 5.0], "NaN"),
        ([1.0, NAN], [1.0, INF], "NaN"),
        ([1, 2], [1, 3], "integer"),
        ([True, False], [True, True], "boolean"),
        ([1 + 2j], [1 - 2j], "norm-wise"),
        ([1.0, 2.0], [[1.0, 2.0]], r"\[1, 2\] instead of"),
        ([1.0], [1], "int64.*instead of.*float32"),
    ],
)
def test_values_that_differ_are_told_apart(expected: Any, actual: Any, reason: str) -> None:
    with pytest.raises(CaptureDiffers, match=reason):
        require_equal(torch.tensor(actual), torch.tensor(expected))


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ([1.0, 2.0], [1.0, 2.00001]),
        ([0.0, 0.0], [0.0, 1e-9]),
        ([INF, -INF, NAN, 1.0], [INF, -INF, NAN, 1.0]),
        ([], []),
        ([1 + 2j], [1 + 2.000001j]),
        (3.0, 3.0),
    ],
)
def test_rounding_and_equal_special_values_pass(expected: Any, actual: Any) -> None:
    require_equal(torch.tensor(actual), torch.tensor(expected))


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ((1.0, 2.0), (1.0,)),
        ((1.0, 2.0), [1.0, 2.0]),
        ({"a": 1.0}, {"b": 1.0}),
    ],
)
def test_another_structure_is_found(expected: Any, actual: Any) -> None:
    with pytest.raises(CaptureDiffers, match="another structure"):
        require_equal(actual, expected)


@pytest.mark.parametrize(("expected", "actual"), [("a", "b"), (None, 2), (1, torch.tensor(1))])
def test_leaves_that_are_no_tensors_must_be_equal(expected: Any, actual: Any) -> None:
    with pytest.raises(CaptureDiffers, match="instead of"):
        require_equal((actual,), (expected,))
