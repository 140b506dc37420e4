"""A convolution takes the ReLU after it, and a sum between, where nothing else reads the parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, conv3d, relu

from planner.passes import fused_convolution as passes
from planner.passes.fused_convolution import fused_convolution
from planner.passes.runner import run_passes
from planner.passes.special_values import MISPLACED

IMAGE, OTHER = torch.randn(2, 6, 9, 11), torch.randn(2, 8, 9, 11)
WEIGHTS = {"w": torch.randn(8, 6, 3, 3), "b": torch.randn(8)}


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's calls are taken for right: oneDNN's, which show the form here, are not."""
    monkeypatch.setattr(passes, "_is_right", lambda *_: True)


def _fused(export: Any, function: Any, *args: Tensor, **weights: Tensor) -> tuple[Any, Any]:
    """The exported function and the notes; equal to eager within rounding, strides as eager's."""
    exported = export(function, *args, **weights)
    (record,) = run_passes(exported.program, [("fused_convolution", fused_convolution)])
    exported.program.validate()
    with torch.no_grad():
        outs, wanted = exported.program.module()(*args), exported.module(*args)
    pairs = zip(*((v if isinstance(v, tuple) else (v,)) for v in (outs, wanted)), strict=True)
    for out, expected in pairs:
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
        assert out.stride() == expected.stride()
    return exported, record.notes


@pytest.mark.parametrize(
    "x", [IMAGE, IMAGE.to(memory_format=torch.channels_last)], ids=["rows", "channels_last"]
)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("options", [{"padding": 1}, {"stride": (2, 1), "dilation": 2}])
@pytest.mark.usefixtures("trusted")
def test_a_relu_goes_into_the_convolution(
    export: Any, x: Tensor, bias: bool, options: dict[str, Any]
) -> None:
    def form(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return relu(conv2d(x, w, b if bias else None, **options))

    exported, notes = _fused(export, form, x, **WEIGHTS)
    assert notes == ("1 convolution with the ReLU after it, 0 with a sum",)
    assert not any("relu" in op or "conv2d" in op for op in exported.ops())


@pytest.mark.usefixtures("trusted")
def test_groups_and_three_dimensions(export: Any) -> None:
    weights = {"w": torch.randn(8, 2, 3, 3, 3)}
    x = torch.randn(2, 4, 5, 6, 7)
    _, notes = _fused(export, lambda x, w: relu(conv3d(x, w, groups=2)), x, **weights)
    assert notes == ("1 convolution with the ReLU after it, 0 with a sum",)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.usefixtures("trusted")
def test_a_residual_goes_with_it(export: Any, turned: bool) -> None:
    def form(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> Tensor:
        made = conv2d(x, w, b, padding=1)
        return relu(y + made if turned else made + y)

    exported, notes = _fused(export, form, IMAGE, OTHER, **WEIGHTS)
    assert notes == ("1 convolution with the ReLU after it, 1 with a sum",)
    assert "add.Tensor" not in exported.ops()


@pytest.mark.usefixtures("trusted")
def test_of_two_convolutions_in_a_sum_one_takes_it(export: Any) -> None:
    def form(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return relu(conv2d(x, w, b, padding=1) + conv2d(x * 2, w, padding=1))

    exported, notes = _fused(export, form, IMAGE, **WEIGHTS)
    assert notes == ("1 convolution with the ReLU after it, 1 with a sum",)
    assert sum("conv2d" in op for op in exported.ops()) == 1


@pytest.mark.parametrize(
    "form",
    [
        lambda x, _, w, b: (relu(t := conv2d(x, w, b, padding=1)), t),
        lambda x, y, w, b: (relu(t := conv2d(x, w, b, padding=1) + y), t * 2),
        lambda x, y, w, b: relu(torch.add(conv2d(x, w, b, padding=1), y, alpha=2)),
        lambda x, y, w, b: relu(conv2d(x, w, b, padding=1) + y[:1]),
        lambda x, _, w, b: relu(conv2d(x, w, b, padding=1) + 1),
        lambda x, _, w, b: torch.nn.functional.relu6(conv2d(x, w, b, padding=1)),
        lambda x, _, w, b: relu(conv2d(x.double(), w.double(), b.double())),
        lambda x, _, w, b: relu(conv2d(x[:0], w, b)),
    ],
)
@pytest.mark.usefixtures("trusted")
def test_it_stays_apart(export: Any, form: Any) -> None:
    _, notes = _fused(export, form, IMAGE, OTHER, **WEIGHTS)
    assert notes == ()


@pytest.mark.usefixtures("trusted")
def test_a_sum_of_a_convolution_with_itself_stays(export: Any) -> None:
    def form(x: Tensor, w: Tensor) -> Tensor:
        made = conv2d(x, w)
        return relu(made + made)

    assert _fused(export, form, IMAGE, w=WEIGHTS["w"])[1] == ()


def _with_its_sum(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return relu(conv2d(x, w, b, padding=1) + y) + relu(conv2d(x, w, b, padding=1))


def test_an_expanded_image(export: Any) -> None:
    """Its elements share memory, into which nothing can be drawn."""
    x = torch.randn(1, 6, 9, 11)
    _, notes = _fused(
        export, lambda x, w: relu(conv2d(x.expand(2, 6, 9, 11), w)), x, w=WEIGHTS["w"]
    )
    assert notes == (f"1 convolution apart from the ReLU: {MISPLACED}",)


def test_a_library_that_loses_a_nan_is_not_used(export: Any) -> None:
    """oneDNN's ReLU makes it 0; were that mended this would say so."""
    exported, notes = _fused(export, _with_its_sum, IMAGE, OTHER, **WEIGHTS)
    assert notes == (f"2 convolutions apart from the ReLU: {MISPLACED}",)
    assert exported.ops().count("relu.default") == 2
    x = IMAGE.clone()
    x[0, 0, 0, 0] = torch.nan
    assert exported.program.module()(x, OTHER).isnan().any()


def test_a_library_that_refuses_is_not_used_and_random_numbers_stay(
    export: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(place: Any) -> tuple[Any, tuple[Any, ...]]:
        return torch.ops.aten.cudnn_convolution_relu.default, place.layer.args  # not on CPU

    monkeypatch.setattr(passes, "_call", call)
    exported = export(lambda x, w, b: relu(conv2d(x, w, b)), IMAGE, **WEIGHTS)
    state = torch.random.get_rng_state()
    assert fused_convolution(exported.program) == (
        f"1 convolution apart from the ReLU: {MISPLACED}",
    )
    assert torch.equal(torch.random.get_rng_state(), state)


def _conv_relu(x: Tensor, w: Tensor, b: Tensor | None, *sizes: Any) -> Tensor:
    return relu(torch.ops.aten.convolution.default(x, w, b, *sizes))


def test_a_library_that_keeps_them_is_used(export: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(place: Any) -> tuple[Any, tuple[Any, ...]]:
        return _conv_relu, (*place.layer.args[:3], [1, 1], [1, 1], [1, 1], False, [0, 0], 1)

    monkeypatch.setattr(passes, "_call", call)
    exported = export(lambda x, w, b: relu(conv2d(x, w, b, padding=1)), IMAGE, **WEIGHTS)
    assert fused_convolution(exported.program) == (
        "1 convolution with the ReLU after it, 0 with a sum",
    )
