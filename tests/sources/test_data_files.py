"""Real inputs from files, weighted batches, and what is said of files that do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from planner.sources.data_files import read
from planner.sources.load import load_subject
from planner.sources.made_inputs import BadInputs
from planner.sources.options import SourceOptions


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, ids: torch.Tensor | None = None) -> torch.Tensor:
        y = self.linear(x)
        return y if ids is None else y + ids[:, None]


def test_safetensors_keys_are_keywords(tmp_path: Path) -> None:
    x, ids = torch.randn(3, 2), torch.arange(3)
    save_file({"x": x, "ids": ids}, tmp_path / "in.safetensors")
    (batch,) = read(tmp_path / "in.safetensors", _Net())
    assert torch.equal(batch.kwargs["x"], x)
    assert torch.equal(batch.kwargs["ids"], ids)


def test_npz_floats_take_the_modules_dtype_and_integers_stay(tmp_path: Path) -> None:
    numpy.savez(tmp_path / "in.npz", x=numpy.ones((3, 2)), ids=numpy.arange(3, dtype="int32"))
    (batch,) = read(tmp_path / "in.npz", _Net().to(torch.bfloat16))
    assert batch.kwargs["x"].dtype is torch.bfloat16
    assert batch.kwargs["ids"].dtype is torch.int32


def test_jsonl_lines_are_weighted_batches(tmp_path: Path) -> None:
    lines = [
        {"inputs": {"x": [[1, 2.5]], "ids": [1]}, "weight": 3, "dtype": {"ids": "int32"}},
        {"inputs": {"x": [[1.0, 2.0], [3.0, 4.0]]}},
    ]
    path = tmp_path / "in.jsonl"
    path.write_text("\n\n".join(map(json.dumps, lines)) + "\n")
    first, second = read(path, _Net())
    assert (first.weight, second.weight) == (3.0, 1.0)
    assert first.kwargs["ids"].dtype is torch.int32
    assert second.kwargs["x"].tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(("weights", "rows"), [((1, 9, 2), 2), ((4, 4, 4), 3), ((5, 4, 4), 1)])
def test_the_heaviest_batch_runs_and_the_largest_among_equals(
    project: Path, weights: tuple[int, ...], rows: int
) -> None:
    lines = [
        {"inputs": {"x": [[0.0] * 16] * n}, "weight": w}
        for n, w in zip((1, 2, 3), weights, strict=True)
    ]
    (project / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    options = SourceOptions(inputs_file=project / "in.jsonl")
    subject = load_subject("model.py:make", options)
    assert subject.kwargs["x"].shape == (rows, 16)
    assert [batch.weight for batch in subject.batches] == list(map(float, weights))
    assert any(f"running batch {rows} of 3" in note for note in subject.notes)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: is not JSON"),
        ("[1]", "line 2: write an object"),
        ('{"x": [1]}', "line 2: write an object"),
        ('{"inputs": {"x": [[1]]}, "wieght": 1}', "unknown key wieght"),
        ('{"inputs": {"x": [[1]]}, "weight": 0}', "weight is 0"),
        ('{"inputs": {"x": [[1]]}, "weight": true}', "weight is True"),
        ('{"inputs": {"x": [[1], [1, 2]]}}', "'x': is not a tensor"),
        ('{"inputs": {"x": "one"}}', "'x': is not a tensor"),
        ('{"inputs": {"x": [[1]]}, "dtype": {"x": "floaty"}}', "'floaty' is not a dtype"),
        ('{"inputs": {"x": [[1]]}, "dtype": {"y": "float32"}}', "names of inputs"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"inputs": {"x": [[1.0, 2.0]]}}\n' + line)
    with pytest.raises(BadInputs, match=said):
        read(path, _Net())


def test_names_that_forward_does_not_take_are_refused(tmp_path: Path) -> None:
    save_file({"y": torch.ones(1)}, tmp_path / "in.safetensors")
    with pytest.raises(BadInputs, match="takes no 'y'"):
        read(tmp_path / "in.safetensors", _Net())


@pytest.mark.parametrize("name", ["in.safetensors", "in.npz", "in.jsonl"])
@pytest.mark.parametrize("content", [b"", b"\xff\x00garbage"])
def test_a_file_of_garbage_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInputs, match=name):
        read(tmp_path / name, _Net())


def test_a_file_that_is_no_archive_says_how_one_is_made(tmp_path: Path) -> None:
    (tmp_path / "in.npz").write_text("not arrays")
    with pytest.raises(BadInputs, match=r"is no \.npz archive; numpy\.savez writes one"):
        read(tmp_path / "in.npz", _Net())


def test_npz_holding_objects_is_refused(tmp_path: Path) -> None:
    numpy.savez(tmp_path / "in.npz", x=numpy.array([{"a": 1}], dtype=object))
    with pytest.raises(BadInputs, match="npz"):
        read(tmp_path / "in.npz", _Net())


@pytest.mark.parametrize(
    ("name", "said"), [("in.csv", "use a file of kind"), ("gone.npz", "no such file")]
)
def test_an_unknown_kind_and_a_missing_file_are_refused(
    tmp_path: Path, name: str, said: str
) -> None:
    with pytest.raises(BadInputs, match=said):
        read(tmp_path / name, _Net())
