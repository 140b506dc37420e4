"""The runner: counts, notes, cleaning up, a signature that stays true, dumps that can be read."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

import planner
from planner.passes.noops import drop_noops
from planner.passes.normalize import NORMALIZE
from planner.passes.runner import count_operators, run_passes

X = torch.randn(4, 6)


def nothing(_: ExportedProgram) -> tuple[str, ...]:
    return ()


def test_records_tell_counts_notes_and_time(export: Any) -> None:
    exported = export(lambda x: x.clone().exp(), X)
    first, second = run_passes(exported.program, [("first", nothing), ("second", drop_noops)])
    assert (first.name, first.nodes_before, first.nodes_after, first.notes) == ("first", 2, 2, ())
    assert (second.nodes_before, second.nodes_after) == (2, 1)
    assert second.notes == ("1 x aten.clone.default that changes nothing",)
    assert first.duration_us > 0


def test_what_a_pass_leaves_unused_is_removed(export: Any) -> None:
    def disconnect(program: ExportedProgram) -> tuple[str, ...]:
        exponential = next(n for n in program.graph.nodes if "exp" in n.name)
        exponential.replace_all_uses_with(exponential.args[0])
        return ()

    exported = export(lambda x: x.sin().exp() + 1, X)
    (record,) = run_passes(exported.program, [("disconnect", disconnect)])
    assert (record.nodes_before, record.nodes_after) == (3, 2)
    assert count_operators(exported.program) == 2


def test_a_broken_graph_is_found_at_once(export: Any) -> None:
    def misplace(program: ExportedProgram) -> tuple[str, ...]:
        first, second = [n for n in program.graph.nodes if n.op == "call_function"]
        second.append(first)
        return ()

    exported = export(lambda x: x.sin().exp(), X)
    with pytest.raises(RuntimeError, match="topological"):
        run_passes(exported.program, [("misplace", misplace)])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.exp().view(4, 6),
        lambda x: (x.view(4, 6), x.exp()),
        lambda x: _twice(x.exp()),
    ],
    ids=["replaced", "by_an_input", "one_value_twice"],
)
def test_the_signature_names_what_is_returned_now(
    export: Any, function: Any, tmp_path: Path
) -> None:
    exported = export(function, X)
    run_passes(exported.program, [("drop_noops", drop_noops)])
    torch.export.save(exported.program, tmp_path / "program.pt2")
    loaded = torch.export.load(tmp_path / "program.pt2").module()
    torch.testing.assert_close(loaded(X), exported.module(X), rtol=0, atol=0)


def _twice(y: Tensor) -> tuple[Tensor, Tensor]:
    return y, y.view(4, 6)


def test_dumps_are_python_and_their_first_line_says_what_was_done(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.GELU()).eval()
    captured = planner.capture(model, (torch.randn(2, 4),), out=tmp_path)
    files = sorted((tmp_path / "graphs").iterdir())
    names = ["captured", *(name for name, _ in NORMALIZE)]
    assert [file.name for file in files] == [f"{n:02d}_{name}.py" for n, name in enumerate(names)]
    for number, (file, record) in enumerate(zip(files, captured.passes, strict=True)):
        first = file.read_text(encoding="utf-8").splitlines()[0]
        head = f"# {number:02d} {record.name}: {record.nodes_before} -> {record.nodes_after} nodes"
        assert re.fullmatch(re.escape(head) + r", \d+\.\d ms", first)
        ast.parse(file.read_text(encoding="utf-8"))


def test_dumps_carry_notes_operators_and_the_user_s_line(export: Any, tmp_path: Path) -> None:
    exported = export(lambda x: x.clone().exp(), X)
    run_passes(exported.program, [("drop_noops", drop_noops)], tmp_path, first_number=7)
    (file,) = tmp_path.iterdir()
    assert file.name == "07_drop_noops.py"
    text = file.read_text(encoding="utf-8")
    assert "# 1 x aten.clone.default that changes nothing" in text.splitlines()[1]
    assert "torch.ops.aten.exp.default" in text
    assert Path(__file__).name in text


def test_without_a_folder_nothing_is_written(
    export: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_passes(export(lambda x: x.exp(), X).program, NORMALIZE)
    assert list(tmp_path.iterdir()) == []


def test_passes_are_idempotent(export: Any) -> None:
    exported = export(lambda x: x.clone().view(4, 6) * torch.arange(6).float(), X)
    run_passes(exported.program, NORMALIZE)
    before = str(exported.program.graph)
    again = run_passes(exported.program, NORMALIZE)
    assert str(exported.program.graph) == before
    assert [record.notes for record in again] == [()] * len(NORMALIZE)
