"""A linear without bias takes the activation after it, where nothing else reads the product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, relu

from planner.fusion.module import FusedModule
from planner.graph.twin import twin_of
from planner.passes import activated_linear as passes
from planner.passes.activated_linear import activated_linears
from planner.passes.runner import run_passes
from planner.passes.special_values import MISPLACED
from planner.pipeline import capture

ONE = {"w": torch.randn(9, 6)}
TWO = {**ONE, "v": torch.randn(5, 9)}
BIASED = {**ONE, "b": torch.randn(9)}


def _activated(export: Any, function: Any, *args: Tensor, **weights: Tensor) -> tuple[Any, Any]:
    exported = export(function, *args, **weights)
    (record,) = run_passes(exported.program, [("activated_linears", activated_linears)])
    exported.program.validate()
    with torch.no_grad():
        out, wanted = exported.program.module()(*args), exported.module(*args)
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5)
    assert out.stride() == wanted.stride()
    return exported, record.notes


@pytest.mark.parametrize("shape", [(6,), (1, 6), (7, 6), (2, 3, 6), (257, 6)], ids=str)
@pytest.mark.parametrize("activation", [relu, gelu], ids=["relu", "gelu"])
def test_it_is_one_call(export: Any, activation: Callable[..., Tensor], shape: Any) -> None:
    def form(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return linear(activation(linear(x, w)), v)

    exported, notes = _activated(export, form, torch.randn(shape), **TWO)
    assert notes == ("1 linear with the activation after it",)
    assert exported.ops().count("linear.default") == 1
    assert not {"relu.default", "gelu.default"} & set(exported.ops())


APART: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "read twice": lambda x, w: relu(t := linear(x, w)) + t,
    "tanh form": lambda x, w: gelu(linear(x, w), approximate="tanh"),
    "tanh": lambda x, w: torch.tanh(linear(x, w)),
    "made weight": lambda x, w: relu(linear(x, w * 2)),
    "columns": lambda x, w: relu(linear(x.t().contiguous().t(), w)),
    "empty": lambda x, w: relu(linear(x[:0], w)),
    "turned": lambda x, w: relu(linear(x, w).t()),
    "gate": lambda x, w: gelu(linear(x, w)) * linear(x, w),
    "turned afterwards": lambda x, w: relu(linear(x, w)).t() * 2,
}


@pytest.mark.parametrize("name", APART)
def test_it_stays_apart(export: Any, name: str) -> None:
    assert _activated(export, APART[name], torch.randn(7, 6), **ONE)[1] == ()


def test_a_weight_that_is_expanded() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("w", torch.randn(1, 6).expand(9, 6))

        def forward(self, x: Tensor) -> Tensor:
            return relu(linear(x, self.get_buffer("w")))

    x, model = torch.randn(7, 6), Tied().eval()
    program = capture(model, (x,)).program
    assert activated_linears(program) == ("1 linear with the activation after it",)
    torch.testing.assert_close(program.module()(x), model(x), rtol=1e-5, atol=1e-5)


def test_one_with_a_bias_is_left_to_the_regions(export: Any) -> None:
    x = torch.randn(7, 6)
    assert _activated(export, lambda x, w, b: relu(linear(x, w, b)), x, **BIASED)[1] == ()


def test_a_library_that_loses_a_nan_is_not_used(
    export: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loses(bias: Tensor, rows: Tensor, turned: Tensor, *, use_gelu: bool) -> Tensor:
        return torch.addmm(bias, rows, turned).nan_to_num().relu() + use_gelu

    monkeypatch.setattr(passes.aten, "_addmm_activation", loses)
    exported, notes = _activated(export, lambda x, w: relu(linear(x, w)), torch.randn(7, 6), **ONE)
    assert notes == (f"1 linear apart from the activation: {MISPLACED}, or is less exact",)
    assert "relu.default" in exported.ops()


def test_a_library_that_is_less_exact_is_not_used(
    export: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rough(bias: Tensor, rows: Tensor, turned: Tensor, *, use_gelu: bool) -> Tensor:
        return torch.addmm(bias, rows, turned).relu() * (1 + 1e-5) + use_gelu

    monkeypatch.setattr(passes.aten, "_addmm_activation", rough)
    exported, _ = _activated(export, lambda x, w: relu(linear(x, w)), torch.randn(7, 6), **ONE)
    assert "relu.default" in exported.ops()


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wi, self.wo = nn.Linear(6, 9, bias=False), nn.Linear(9, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.wo(relu(self.wi(x)))


def test_changed_weights_are_seen() -> None:
    model, x = Pair().eval(), torch.randn(4, 6)
    captured = capture(model, (x,))
    run_passes(captured.program, [("activated_linears", activated_linears)])
    fused = FusedModule(twin_of(model), captured.program)
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(fused(x), model(x))
            for weight in model.parameters():
                weight.mul_(2)
    assert fused.fallbacks == 0
