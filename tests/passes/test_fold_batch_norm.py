"""A batch norm goes into the layer before it where that is all that reads it."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from planner.graph.export import capture, second_program
from planner.passes.derived import derived_of
from planner.passes.fold_batch_norm import fold_batch_norm, folded_bias, folded_weight
from planner.passes.runner import run_passes

NORM = torch.ops.aten._native_batch_norm_legit_no_training.default


def drawn(module: nn.Module) -> nn.Module:
    """In eval mode, with statistics as training leaves them."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            part.running_mean.normal_()
            part.running_var.uniform_(0.3, 3)
            if part.affine:
                nn.init.normal_(part.weight)
                nn.init.normal_(part.bias)
    return module.eval()


def norms(program: ExportedProgram) -> int:
    return sum(node.target is NORM for node in program.graph.nodes)


def folded(module: nn.Module, *args: Tensor) -> tuple[ExportedProgram, tuple[str, ...]]:
    """The program after the pass, equal to eager within rounding, strides as they were."""
    program = capture(module, args).program
    (record,) = run_passes(program, [("fold", fold_batch_norm)])
    program.validate()
    for candidate in (program, second_program(program)):
        with torch.no_grad():
            actual, expected = candidate.module()(*args), module(*args)
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
        if isinstance(actual, Tensor):
            assert actual.stride() == expected.stride()
    return program, record.notes


IMAGE = torch.randn(2, 6, 9, 11)


@pytest.mark.parametrize(
    ("module", "x"),
    [
        (lambda: (nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8)), IMAGE),
        (lambda: (nn.Conv2d(6, 8, 3, bias=False), nn.BatchNorm2d(8)), IMAGE),
        (lambda: (nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8, affine=False, eps=0.1)), IMAGE),
        (lambda: (nn.Conv2d(6, 8, 3, 2, 1, groups=2), nn.BatchNorm2d(8), nn.ReLU()), IMAGE),
        (lambda: (nn.Conv2d(6, 6, 3, padding="same", groups=6), nn.BatchNorm2d(6)), IMAGE),
        (lambda: (nn.Conv2d(6, 257, 1), nn.BatchNorm2d(257)), IMAGE),
        (
            lambda: (nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8)),
            IMAGE.to(memory_format=torch.channels_last),
        ),
        (lambda: (nn.Conv1d(6, 8, 3), nn.BatchNorm1d(8)), torch.randn(1, 6, 257)),
        (lambda: (nn.Conv3d(2, 4, 2), nn.BatchNorm3d(4)), torch.randn(2, 2, 4, 5, 6)),
        (lambda: (nn.Linear(6, 8), nn.BatchNorm1d(8)), torch.randn(3, 6)),
        (lambda: (nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8)), torch.randn(1, 6)),
        (lambda: (nn.Conv2d(6, 8, 3).double(), nn.BatchNorm2d(8).double()), IMAGE.double()),
    ],
    ids=[
        "conv2d", "no_bias", "no_affine", "groups", "depthwise_same", "wide", "channels_last",
        "conv1d", "conv3d", "linear", "linear_no_bias", "float64",
    ],
)  # fmt: skip
def test_a_norm_goes_into_the_layer(module: Any, x: Tensor) -> None:
    program, notes = folded(drawn(nn.Sequential(*module())), x)
    assert notes[0].startswith("1 batch norms folded")
    assert norms(program) == 0


class Of(nn.Module):
    """A function of a convolution, a norm and an input."""

    def __init__(self, function: Any, conv: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.function, self.conv, self.norm = function, conv, norm

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def _counted(self: Any, x: Tensor) -> Tensor:
    y: Tensor = self.norm(self.conv(x))
    self.norm.running_mean.add_(1)
    return y


@pytest.mark.parametrize(
    ("function", "conv", "norm", "x"),
    [
        (
            lambda self, x: (lambda y: (self.norm(y), y))(self.conv(x)),
            nn.Conv2d(6, 8, 3),
            nn.BatchNorm2d(8),
            IMAGE,
        ),
        (
            lambda self, x: (lambda y: self.norm(y) + y)(self.conv(x)),
            nn.Conv2d(6, 8, 3),
            nn.BatchNorm2d(8),
            IMAGE,
        ),
        (
            lambda self, x: self.norm(self.conv(x).relu()),
            nn.Conv2d(6, 8, 3),
            nn.BatchNorm2d(8),
            IMAGE,
        ),
        (
            lambda self, x: self.norm(self.conv(x)),
            nn.Linear(11, 12),
            nn.BatchNorm2d(6),
            IMAGE,
        ),
        (
            lambda self, x: self.norm(self.conv(x)),
            nn.ConvTranspose2d(6, 8, 3),
            nn.BatchNorm2d(8),
            IMAGE,
        ),
        (_counted, nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8), IMAGE),
        (
            lambda self, x: self.norm(self.conv(x)),
            nn.Conv2d(6, 8, 3).bfloat16(),
            nn.BatchNorm2d(8).bfloat16(),
            IMAGE.bfloat16(),
        ),
        (
            lambda self, x: self.norm(self.conv(x)),
            nn.Conv2d(6, 8, 3),
            nn.BatchNorm2d(8, track_running_stats=False),
            IMAGE,
        ),
    ],
    ids=[
        "returned", "added", "activation_between", "over_other_channels", "transposed",
        "statistics_written", "bfloat16", "statistics_of_the_batch",
    ],
)  # fmt: skip
def test_a_norm_that_cannot_be_folded_stays(function: Any, conv: Any, norm: Any, x: Tensor) -> None:
    module = Of(function, conv, norm).eval()
    program = capture(module, (x,)).program
    before = program.graph_module.code
    (record,) = run_passes(program, [("fold", fold_batch_norm)])
    assert record.notes == ()
    assert program.graph_module.code == before


def test_a_weight_that_two_layers_share_is_folded_for_each() -> None:
    def function(self: Any, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.conv(x)) + self.conv(x).sin()
        return y

    module = drawn(Of(function, nn.Conv2d(6, 6, 3), nn.BatchNorm2d(6)))
    program, notes = folded(module, IMAGE)
    assert len(notes) == 1
    assert len(derived_of(program)) == 2


def test_the_fold_is_exact_to_the_last_rounding() -> None:
    conv, norm = nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5)
    drawn(nn.Sequential(conv, norm))
    norm.running_var[0] = 1e-9
    with torch.no_grad():
        weight = folded_weight(norm.eps, conv.weight, norm.running_var, norm.weight)
        bias = folded_bias(
            norm.eps,
            norm.running_var,
            norm.running_mean,
            norm.weight,
            norm.bias,
            conv.bias,
            torch.float32,
        )
        scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
        exact = conv.weight.double() * scale[:, None, None, None]
        shift = (conv.bias.double() - norm.running_mean.double()) * scale + norm.bias.double()
    torch.testing.assert_close(weight, exact.float(), rtol=1.2e-7, atol=0)
    torch.testing.assert_close(bias, shift.float(), rtol=1.2e-7, atol=0)


def test_the_program_is_saved_and_loaded_with_its_folded_weights() -> None:
    module = drawn(nn.Sequential(nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8)))
    program, _ = folded(module, IMAGE)
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    loaded = torch.export.load(buffer)
    assert norms(loaded) == 0
    with torch.no_grad():
        torch.testing.assert_close(loaded.module()(IMAGE), module(IMAGE), rtol=1e-5, atol=1e-5)
