"""Where an operator comes from: the module's path, the user's line, blocks that run again."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import planner
from planner.graph.op_graph import OpGraph, TensorMeta
from planner.graph.source import printable, source_line, user_frame
from planner.graph.view import tensor_meta


def mix(a: Tensor, b: Tensor) -> Tensor:
    return F.gelu(a - b) + b


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.fc(x))


class Root(nn.Module):
    """One block three times, twice in a row; a slice of a list; work in a function."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = Block()
        self.layers = nn.ModuleList([Block() for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        y = self.shared(self.shared(x))
        for layer in self.layers[1:]:
            y = layer(y)
        return mix(self.shared(y), x)


@pytest.fixture(scope="module")
def graph() -> OpGraph:
    return planner.capture(Root().eval(), (torch.randn(4, 8),)).graph


def lines(text: str) -> set[int]:
    content = Path(__file__).read_text(encoding="utf-8").splitlines()
    return {index + 1 for index, line in enumerate(content) if line.strip() == text}


def test_calls_of_a_shared_block_are_counted_one_by_one(graph: OpGraph) -> None:
    gelus = Counter(n.module_path for n in graph if n.op == "aten.gelu.default")
    assert gelus == {"shared": 3, "layers.1": 1, "layers.2": 1, "": 1}


def test_the_module_is_the_innermost_one(graph: OpGraph) -> None:
    linears = [(n.module_path, n.module_type) for n in graph if n.op == "aten.linear.default"]
    paths = ["shared.fc", "shared.fc", "layers.1.fc", "layers.2.fc", "shared.fc"]
    assert linears == [(path, "Linear") for path in paths]


def test_a_function_s_work_is_on_its_own_line_in_the_module_that_calls(graph: OpGraph) -> None:
    mixed = [node for node in graph if node.source and node.source.line in lines(
        "return F.gelu(a - b) + b"
    )]  # fmt: skip
    assert [node.op.split(".")[1] for node in mixed] == ["sub", "gelu", "add"]
    assert {(node.module_path, node.module_type) for node in mixed} == {("", "Root")}


def test_a_torch_layer_is_on_the_line_that_calls_it(graph: OpGraph) -> None:
    found = {node.source.line for node in graph if node.source and node.module_type == "Linear"}
    assert found == lines("return F.gelu(self.fc(x))")


def test_source_lines_carry_file_and_text(graph: OpGraph) -> None:
    for node in graph:
        assert node.source is not None
        assert node.source.file.endswith(Path(__file__).name)
        assert not Path(node.source.file).is_absolute()
        assert str(node.source) == f"{node.source.file}:{node.source.line}"


def test_equal_calls_share_a_key(graph: OpGraph) -> None:
    groups = {key.op: len(nodes) for key, nodes in graph.by_key().items()}
    assert groups == {
        "aten.linear.default": 5, "aten.gelu.default": 6, "aten.sub.Tensor": 1,
        "aten.add.Tensor": 1,
    }  # fmt: skip


def test_users_are_the_operators_that_read_the_result(graph: OpGraph) -> None:
    first = graph.nodes[0]
    assert [node.name for node in graph if node.name in first.users] == ["gelu"]


def test_a_trace_within_torch_alone_has_no_line() -> None:
    inside = Path(torch.__file__).parent / "nn" / "functional.py"
    assert source_line(f'  File "{inside}", line 3, in f\n    x') is None
    assert source_line(None) is None


def test_an_error_s_frame_is_the_user_s_innermost() -> None:
    with pytest.raises(RuntimeError) as caught:
        mix(torch.ones(2), torch.ones(3))
    (line,) = lines("return F.gelu(a - b) + b")
    assert user_frame(caught.value.__traceback__) == f"{printable(__file__)}:{line}"


def test_an_error_without_a_trace_has_no_frame() -> None:
    assert user_frame(None) is None


def test_paths_are_relative_to_the_nearest_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "pack"
    package.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    monkeypatch.chdir(tmp_path)
    assert printable(str(package / "model.py")) == "pack/model.py"
    assert printable(str(tmp_path / "own.py")) == "own.py"
    assert printable("/elsewhere/deep/model.py") == "model.py"


def test_metadata_of_a_tensor_is_plain() -> None:
    meta = tensor_meta(torch.zeros(4, 6, dtype=torch.bfloat16).t()[:, ::2])
    assert meta == TensorMeta((6, 2), "bfloat16", (1, 12), "cpu")
    assert (meta.numel, meta.nbytes, str(meta)) == (12, 24, "bfloat16[6, 2]")


def test_an_expanded_dimension_is_read_once() -> None:
    meta = tensor_meta(torch.zeros(3).expand(5, 3))
    assert (meta.numel, meta.nbytes) == (15, 12)


def test_an_empty_tensor_has_no_bytes() -> None:
    assert tensor_meta(torch.zeros(0, 3).expand(2, 0, 3)).nbytes == 0


def test_symbolic_sizes_count_as_their_example() -> None:
    captured = planner.capture(
        nn.GELU().eval(), (torch.randn(6, 3),), None, ({0: torch.export.Dim.DYNAMIC},)
    )
    assert captured.graph.nodes[0].inputs[0].shape == (6, 3)


def test_arguments_are_found_by_position_or_name_or_default() -> None:
    class Sums(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sum(1, keepdim=True, dtype=torch.float64)

    (node,) = planner.capture(Sums().eval(), (torch.randn(2, 3),)).graph.nodes
    assert node.arg(1, "dim") == (1,)
    assert node.arg(2, "keepdim") is True
    assert node.arg(3, "dtype") == "float64"
    assert node.arg(9, "absent", "x") == "x"
