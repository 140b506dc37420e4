"""The reading of `--dynamic`, and the sizes that it leaves open."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import planner
from planner.sources.open_sizes import dynamic_shapes_of
from planner.sources.options import BadOption, OpenSize, parse_open


class _Two(nn.Module):
    def forward(self, ids: Tensor, mask: Tensor, table: Tensor, scale: float = 1.0) -> Tensor:
        out: Tensor = table[ids] * mask[..., None] * scale
        return out


def _call(batch: int = 3, seq: int = 5) -> dict[str, Any]:
    ids = torch.randint(7, (batch, seq))
    return {"ids": ids, "mask": torch.ones(batch, seq), "table": torch.randn(7, 4), "scale": 2.0}


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("batch", OpenSize("batch", None, 0, None)),
        ("batch=0:64", OpenSize("batch", None, 0, 64)),
        ("seq=1:", OpenSize("seq", None, 1, None)),
        ("seq=:512", OpenSize("seq", None, 0, 512)),
        ("pixel_values.2=32:224", OpenSize("pixel_values", 2, 32, 224)),
    ],
)
def test_a_size_and_its_range_are_read(text: str, size: OpenSize) -> None:
    assert parse_open(text) == size


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("batch=8", "least:most"),
        ("batch=-1:8", "least:most"),
        ("rows", r"rows\.0"),
        ("batch=8:4", "less to more"),
        ("batch=0:1", "up to 2"),
        ("x.y=1:2", "least:most"),
    ],
)
def test_other_forms_are_refused_with_advice(text: str, said: str) -> None:
    with pytest.raises(BadOption, match=said):
        parse_open(text)


def _open(*texts: str, call: dict[str, Any] | None = None) -> Any:
    wanted = [parse_open(text) for text in texts]
    return dynamic_shapes_of(_Two(), (), call or _call(), wanted)


def test_batch_and_seq_are_dimensions_of_all_inputs_of_that_size() -> None:
    shapes = _open("batch=0:8", "seq=1:9")
    assert {name: set(spec or ()) for name, spec in shapes.items()} == {
        "ids": {0, 1},
        "mask": {0, 1},
        "table": set(),
        "scale": set(),
    }
    assert (shapes["ids"][1].min, shapes["ids"][1].max) == (1, 9)


def test_one_dimension_is_named_by_input_and_number() -> None:
    shapes = _open("table.0=2:100")
    assert {name: set(spec or ()) for name, spec in shapes.items()}["table"] == {0}


def test_nothing_wanted_leaves_nothing_open() -> None:
    assert dynamic_shapes_of(_Two(), (), _call(), ()) is None


@pytest.mark.parametrize(
    ("text", "said"), [("tokens.0", "there are ids, mask, table"), ("table.2", "2 dimensions")]
)
def test_what_no_input_has_is_refused(text: str, said: str) -> None:
    with pytest.raises(BadOption, match=said):
        _open(text)


@pytest.mark.parametrize("text", ["batch=5:9", "batch=:2", "seq=6:", "ids.1=1:4"])
def test_an_example_outside_of_the_range_is_refused_with_both(text: str) -> None:
    with pytest.raises(BadOption, match=r"the example has [35] there\. Give a range that holds it"):
        dynamic_shapes_of(_Two(), (), _call(), [parse_open(text)])


@pytest.mark.parametrize("text", ["batch=2:8", "batch=0:3", "batch=1:"])
def test_what_is_there_once_counts_as_two(text: str) -> None:
    assert dynamic_shapes_of(_Two(), (), _call(batch=1), [parse_open(text)])


def test_the_export_ties_what_the_model_needs_equal() -> None:
    model = _Two().eval()
    shapes = _open("batch=0:8", "seq=1:9")
    program = planner.capture(model, (), _call(), shapes).program.module()
    for batch, seq in ((3, 5), (1, 1), (8, 9), (0, 2)):
        call = _call(batch, seq)
        assert torch.equal(program(**call), model(**call))
