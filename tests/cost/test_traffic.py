"""Bytes of operators: each tensor once, views free, lookups by the rows they read."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.cost.traffic import bytes_of, can_view
from planner.graph.op_graph import OpNode, TensorMeta
from planner.graph.view import op_graph


class Run(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


def bytes_in(function: Callable[..., Tensor], *inputs: Tensor) -> int:
    with torch.no_grad():
        program = torch.export.export(Run(function), inputs, strict=False)
    counts = [bytes_of(node) for node in op_graph(program.run_decompositions({}))]
    return sum(count for count in counts if count is not None)


X = torch.randn(16, 8)
INDICES = torch.tensor([0, 3, 3])


@pytest.mark.parametrize(
    ("function", "inputs", "expected"),
    [
        (torch.add, (X, X[0]), 512 + 32 + 512),
        (F.relu, (X.bfloat16(),), 256 + 256),
        (lambda x: x.to(torch.float64), (X,), 512 + 1024),
        (torch.mm, (X, X[:8]), 512 + 256 + 512),
        (lambda x: x.transpose(0, 1), (X,), 0),
        (lambda x: x.expand(3, 16, 8), (X,), 0),
        (lambda x: x.view(4, 32)[1:].unsqueeze(0), (X,), 0),
        (lambda x: torch.zeros_like(x), (X,), 512),
        (lambda w, i: F.embedding(i, w), (X, INDICES), 3 * 8 + 2 * 3 * 8 * 4),
        (lambda x, i: x.index_select(0, i), (X, INDICES), 3 * 8 + 2 * 3 * 8 * 4),
        (lambda x, i: x[i], (X, INDICES), 3 * 8 + 2 * 3 * 8 * 4),
        (lambda x, i: x.gather(1, i), (X, torch.zeros(2, 1).long()), 2 * 8 + 2 * 2 * 4),
        (torch.add, (X, X[:1].expand(16, 8)), 512 + 32 + 512),
    ],
)
def test_bytes(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], expected: int) -> None:
    assert bytes_in(function, *inputs) == expected


def test_dtype_of_unknown_size_is_unknown() -> None:
    x = TensorMeta((4,), "float4_e2m1fn_x2", (1,), "cpu")
    assert (
        bytes_of(OpNode("n", "aten.relu.default", (x,), {}, (x,), (x,), "", "", None, ())) is None
    )


def reshape_node(source: Tensor, target: tuple[int, ...]) -> OpNode:
    before = TensorMeta(tuple(source.shape), "float32", source.stride(), "cpu")
    out = source.reshape(target)
    after = TensorMeta(tuple(out.shape), "float32", out.stride(), "cpu")
    op = "aten.reshape.default"
    return OpNode("n", op, (before, target), {}, (before,), (after,), "", "", None, ())


def test_reshape_that_copies_moves_bytes() -> None:
    assert bytes_of(reshape_node(torch.randn(4, 6).t(), (24,))) == 2 * 96
    assert bytes_of(reshape_node(torch.randn(4, 6), (24,))) == 0


def test_can_view_agrees_with_torch_view() -> None:
    base = torch.zeros(2, 3, 4)
    sources = [base.permute(order) for order in itertools.permutations(range(3))]
    sources += [base[:, :2], base[:, :, ::2], base[:1].expand(5, 3, 4), base[:, 1:2]]
    targets = [(-1,), (4, 6), (6, 4), (2, 12), (3, 2, 2, 2), (1, 24), (2, 2, -1), (5, 12), (15, 4)]
    checked = 0
    for source, target in itertools.product(sources, targets):
        try:
            shape = tuple(torch.empty(source.shape).reshape(target).shape)
        except RuntimeError:
            continue
        try:
            source.view(target)
            expected = True
        except RuntimeError:
            expected = False
        assert can_view(tuple(source.shape), source.stride(), shape) is expected, (source, target)
        checked += 1
    assert checked > 40
