"""Operators of several results and composites become what regions hold, where they may."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from planner.graph.export import capture
from planner.passes.normalize import NORMALIZE
from planner.passes.runner import run_passes
from planner.passes.take_apart import take_apart


class Called(nn.Module):
    """A function of tensors as a module, with a batch norm whose statistics are not the first."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function, self.norm = function, nn.BatchNorm2d(6)
        self.norm.running_mean = torch.randn(6)
        self.norm.running_var = torch.rand(6) + 0.5

    def forward(self, *args: Tensor) -> Any:
        return self.function(self.norm, *args)


def taken(function: Callable[..., Any], *args: Tensor) -> tuple[str, ...]:
    """The pass's notes; the program equals eager in values, dtypes and strides."""
    module = Called(function).eval()
    program = capture(module, args).program
    run_passes(program, NORMALIZE)
    (record,) = run_passes(program, [("take_apart", take_apart)])
    program.validate()
    with torch.no_grad():
        actual, wanted = program.module()(*args), module(*args)
    pairs = zip(pytree.tree_leaves(actual), pytree.tree_leaves(wanted), strict=True)
    for out, expected in pairs:
        torch.testing.assert_close(out, expected, equal_nan=True)
        assert out.stride() == expected.stride()
    return record.notes


IMAGE = torch.randn(3, 6, 5, 7)
SCORES, CLASSES = torch.randn(9, 11), torch.tensor([0, 10, 3, -100, 4, 4, -100, 9, 1])


@pytest.mark.parametrize(
    ("function", "args", "name"),
    [
        (lambda norm, x: norm(x), (IMAGE,), "native_batch_norm_legit_no_training"),
        (lambda _, x: F.instance_norm(x), (IMAGE,), "instance_norm"),
        (lambda _, x: torch.var_mean(x, -1, keepdim=True), (IMAGE,), "var_mean"),
        (lambda _, x: torch.std_mean(x, [0, 2], correction=0), (IMAGE,), "std_mean"),
        (lambda _, x: x.max(1).values, (IMAGE,), "max"),
        (lambda _, x: x.min(-1, keepdim=True)[0], (IMAGE,), "min"),
        (lambda _, x: torch.aminmax(x, dim=2), (IMAGE,), "aminmax"),
        (lambda _, x: torch.aminmax(x)[1], (IMAGE,), "aminmax"),
        (lambda _, x: F.glu(x, 1), (IMAGE,), "glu"),
        (lambda _, x: [part * 2 for part in (x + 1).split(2, 1)], (IMAGE,), "split"),
        (
            lambda _, x: [part * 2 for part in (x + 1).split([1, 4], 2)],
            (IMAGE,),
            "split_with_sizes",
        ),
        (lambda _, x: [y * 2 for y in (x + 1).chunk(2, -1)], (IMAGE,), "split"),
        (F_cross := lambda _, x, y: F.cross_entropy(x, y), (SCORES, CLASSES), "cross_entropy_loss"),
        (
            lambda _, x, y: F.cross_entropy(x, y, reduction="none", ignore_index=4),
            (SCORES[:3], CLASSES[4:7].clamp(min=0)),
            "cross_entropy_loss",
        ),
        (
            lambda _, x, y: F.cross_entropy(x, y, reduction="sum"),
            (SCORES, CLASSES),
            "cross_entropy_loss",
        ),
        (F_cross, (SCORES[:2], torch.tensor([-100, -100])), "cross_entropy_loss"),
        (
            lambda _, x, y: F.cross_entropy(x, y, ignore_index=255),
            (SCORES, CLASSES.masked_fill(CLASSES < 0, 255)),
            "cross_entropy_loss",
        ),
        (F_cross, (SCORES.bfloat16(), CLASSES), "cross_entropy_loss"),
        (
            lambda _, x, y: F.cross_entropy(x.float(), y),
            (SCORES.bfloat16(), CLASSES),
            "cross_entropy_loss",
        ),
        (
            lambda _, x, y: F.nll_loss(x.log_softmax(-1), y, reduction="sum", ignore_index=4),
            (SCORES, CLASSES.clamp(min=0)),
            "cross_entropy_loss",
        ),
        (
            lambda _, x, y: F.nll_loss(x.log_softmax(1, dtype=torch.float32), y),
            (SCORES.bfloat16(), CLASSES),
            "cross_entropy_loss",
        ),
    ],
)
def test_it_is_taken_apart(function: Any, args: tuple[Tensor, ...], name: str) -> None:
    assert taken(function, *args) == (f"1 x {name} taken apart",)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (lambda _, x: x.max(1), (IMAGE,)),
        (lambda _, x: [part * 2 for part in x.split(2, 1)], (IMAGE,)),
        (lambda _, x: x.max(1).indices, (IMAGE,)),
        (
            lambda norm, x: F.instance_norm(x, norm.running_mean, norm.running_var, momentum=0.0),
            (IMAGE,),
        ),
        (lambda _, x, y: F.cross_entropy(x, y, label_smoothing=0.1), (SCORES, CLASSES)),
        (lambda _, x, y: (lambda z: (F.nll_loss(z, y), z))(x.log_softmax(1)), (SCORES, CLASSES)),
        (lambda _, x, y: F.nll_loss(x.log_softmax(0), y), (SCORES, CLASSES)),
        (lambda _, x, y: F.cross_entropy(x, y, weight=x[0].exp()), (SCORES, CLASSES)),
        (lambda _, x, y: F.cross_entropy(x, y.softmax(-1)), (SCORES, SCORES)),
        (lambda _, x, y: F.cross_entropy(x, y), (IMAGE, torch.zeros(3, 5, 7, dtype=torch.int64))),
    ],
)
def test_it_stays_whole(function: Any, args: tuple[Tensor, ...]) -> None:
    assert taken(function, *args) == ()


def test_a_class_that_is_not_there_is_still_an_error() -> None:
    program = capture(
        Called(lambda _, x, y: F.cross_entropy(x, y)).eval(), (SCORES, CLASSES)
    ).program
    run_passes(program, [("take_apart", take_apart)])
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        program.module()(SCORES, CLASSES.masked_fill(CLASSES == 0, -1))
