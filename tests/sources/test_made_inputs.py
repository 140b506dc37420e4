"""Inputs made from a forward signature, and the reading of `--input` and `--set`."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from planner.sources.made_inputs import BadInputs, make
from planner.sources.options import (
    BadOption,
    InputSpec,
    SourceOptions,
    parse_input,
    parse_setting,
)


class _Ids(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 4)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, position_ids: float = 0.0
    ) -> torch.Tensor:
        return self.table(input_ids) * attention_mask[..., None] + position_ids


class _Two(nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left + right


class _One(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> object:
        return self.layer(x)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(6, 2), (3, 6)),
        (nn.Conv2d(5, 2, 3), (3, 5, 64, 64)),
        (nn.Conv1d(5, 2, 3), (3, 5, 128)),
        (nn.LayerNorm(9), (3, 128, 9)),
        (nn.Embedding(7, 2), (3, 128)),
    ],
)
def test_a_single_input_is_shaped_by_the_first_layer(
    layer: nn.Module, shape: tuple[int, ...]
) -> None:
    module = _One(layer)
    batch = make(module, SourceOptions(batch=3, image=64))
    assert batch.kwargs["x"].shape == shape
    module(**batch.kwargs)


def test_a_linear_layer_gets_a_sequence_when_one_is_asked_for() -> None:
    batch = make(_One(nn.Linear(6, 2)), SourceOptions(seq=5))
    assert batch.kwargs["x"].shape == (1, 5, 6)


def test_floating_inputs_have_the_modules_dtype() -> None:
    batch = make(_One(nn.Linear(6, 2).to(torch.bfloat16)), SourceOptions())
    assert batch.kwargs["x"].dtype is torch.bfloat16


def test_ids_lie_in_the_vocabulary_and_masks_are_ones() -> None:
    kwargs = make(_Ids(), SourceOptions(batch=64)).kwargs
    assert kwargs["input_ids"].dtype is torch.int64
    assert sorted(kwargs["input_ids"].unique().tolist()) == list(range(11))
    assert torch.equal(kwargs["attention_mask"], torch.ones(64, 128, dtype=torch.int64))
    assert "position_ids" not in kwargs


def test_a_seed_fixes_the_inputs() -> None:
    one, two, three = (make(_Ids(), SourceOptions(seed=s)).kwargs["input_ids"] for s in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, three)


def test_an_input_replaces_the_guess_and_adds_optional_ones() -> None:
    specs = (parse_input("input_ids=int32[2,5]"), parse_input("position_ids=int64[2,5]"))
    kwargs = make(_Ids(), SourceOptions(inputs=specs)).kwargs
    assert (kwargs["input_ids"].dtype, kwargs["input_ids"].shape) == (torch.int32, (2, 5))
    assert kwargs["position_ids"].tolist() == [[0, 1, 2, 3, 4]] * 2


def test_inputs_that_cannot_be_guessed_are_asked_for() -> None:
    with pytest.raises(BadInputs, match=r"--input left=.* --input right="):
        make(_Two(), SourceOptions())


def test_a_name_that_forward_does_not_take_is_refused() -> None:
    with pytest.raises(BadInputs, match="takes no 'middle'; it takes left, right"):
        make(_Two(), SourceOptions(inputs=(InputSpec("middle", "float32", (1,)),)))


def test_a_mask_is_refused_outside_hf() -> None:
    with pytest.raises(BadInputs, match="--input attention_mask"):
        make(_Ids(), SourceOptions(mask="full"))


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("x=float32[]", InputSpec("x", "float32", ())),
        ("ids=int64[8, 128]", InputSpec("ids", "int64", (8, 128))),
        ("e=bfloat16[0,4]", InputSpec("e", "bfloat16", (0, 4))),
    ],
)
def test_input_text(text: str, spec: InputSpec) -> None:
    assert parse_input(text) == spec


@pytest.mark.parametrize("text", ["x", "x=float32", "x=int64[8,]", "x=floaty[8]", "x=int64[-1]"])
def test_wrong_input_text_is_refused(text: str) -> None:
    with pytest.raises(BadOption, match=text.split("=")[0]):
        parse_input(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("a=2", 2), ("a=true", True), ("a=[1,2]", [1, 2]), ("a=gelu", "gelu"), ("a=", "")],
)
def test_setting_text(text: str, value: object) -> None:
    assert parse_setting(text) == ("a", value)


@pytest.mark.parametrize("text", ["a", "=2", "a b=2", "a..b=1"])
def test_wrong_setting_text_is_refused(text: str) -> None:
    with pytest.raises(BadOption, match="key=value"):
        parse_setting(text)
