"""Values known by their indices: held against the values themselves at several sizes, and masks of
open size that are all true or causal, with twins that are neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.export import Dim
from torch.nn.functional import scaled_dot_product_attention

from planner.passes.affine import Affine, affine_values
from planner.pipeline import capture

_SIZES = ((2, 5), (1, 1), (3, 9), (4, 2))


class Of(nn.Module):
    """A function of how many rows and columns the input has."""

    def __init__(self, function: Callable[[int, int], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(*x.shape)


def _positions(rows: int, columns: int) -> Tensor:
    return torch.arange(columns)[None].expand(rows, -1)


def _looked_up(rows: int, columns: int) -> Tensor:
    batch = torch.arange(rows)[:, None, None, None]
    time = torch.arange(columns)[None, None, :, None]
    return _positions(rows, columns)[batch, time]


def _steps(rows: int, columns: int) -> Tensor:
    whole = _positions(rows, columns)
    return torch.diff(whole, prepend=whole[:, :1] - 1, dim=-1)


FUNCTIONS: dict[str, Callable[[int, int], Tensor]] = {
    "arange": lambda _, c: torch.arange(3, c + 3, 1) + torch.arange(0, 2 * c, 2),
    "outer": lambda r, c: torch.arange(r)[:, None] - torch.arange(c)[None],
    "positions": _positions,
    "slice": lambda r, c: (
        torch.arange(1, 2 * c + 1)[1:][::2][None] + torch.zeros(r, 1, dtype=torch.int64)
    ),
    "looked_up": _looked_up,
    "steps": _steps,
    "changes": lambda r, c: (_steps(r, c) != 1).cumsum(-1),
    "counted": lambda r, c: torch.ones(r, c, dtype=torch.int64).cumsum(0),
    "not_before": lambda r, c: torch.arange(c)[None] >= torch.arange(r)[:, None],
    "before": lambda r, c: torch.arange(c)[None] < torch.arange(r)[:, None],
    "same_row": lambda r, c: _steps(r, c) == torch.full((r, 1), 1),
    "both": lambda r, c: (torch.arange(c) >= 0)[None] & (torch.arange(r)[:, None] > 2),
}


def _expected(value: Affine, shape: torch.Size) -> Tensor:
    total = torch.full(shape, value.base)
    for dim, step in enumerate(value.steps):
        index = torch.arange(shape[dim])
        total = total + step * index.reshape([-1 if d == dim else 1 for d in range(len(shape))])
    return total >= 0 if value.is_condition else total


class _Recording(fx.Interpreter):
    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.seen: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        self.seen[n] = super().run_node(n)
        return self.seen[n]


def _open_program(function: Callable[[int, int], Any]) -> Any:
    shapes = {"x": {0: Dim.DYNAMIC(min=1), 1: Dim.DYNAMIC(min=1)}}
    module = Of(function).eval()
    return torch.export.export(module, (torch.randn(3, 7),), dynamic_shapes=shapes)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_value_is_what_its_indices_say(name: str) -> None:
    program = _open_program(FUNCTIONS[name]).run_decompositions({})
    known = affine_values(program.graph)
    output = next(node for node in program.graph.nodes if node.op == "output")
    assert output.args[0][0] in known
    for size in _SIZES:
        run = _Recording(program.graph_module)
        run.run(torch.randn(size))
        for node, value in known.items():
            assert torch.equal(run.seen[node], _expected(value, run.seen[node].shape)), node


UNKNOWN: dict[str, Callable[[int, int], Tensor]] = {
    "product": lambda _, c: torch.arange(c) * torch.arange(c),
    "other_prefix": lambda r, c: torch.diff(_positions(r, c), prepend=_positions(r, c)[:, :1] - 2),
    "from_the_end": lambda r, c: torch.arange(c)[torch.arange(-1, r - 1)],
    "equal": lambda r, c: torch.arange(c)[None] == torch.arange(r)[:, None],
    "either": lambda _, c: (torch.arange(c) > 2) & (torch.arange(c) < 4),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_no_such_sum_is_not_known(name: str) -> None:
    program = _open_program(UNKNOWN[name]).run_decompositions({})
    output = next(node for node in program.graph.nodes if node.op == "output")
    assert output.args[0][0] not in affine_values(program.graph)


class Attention(nn.Module):
    """Attention under a mask of the sequence's length."""

    def __init__(self, mask: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, x: Tensor) -> Tensor:
        index = torch.arange(x.shape[2])
        mask = self.mask(index[:, None], index[None])
        return scaled_dot_product_attention(x, x, x, mask.expand(x.shape[0], 1, -1, -1))


def _attention(mask: Callable[[Tensor, Tensor], Tensor]) -> tuple[Any, Any, tuple[Any, ...]]:
    model = Attention(mask).eval()
    shapes = {"x": {0: Dim.DYNAMIC(min=1), 2: Dim.DYNAMIC(min=1)}}
    program = capture(model, (torch.randn(2, 4, 7, 8),), {}, shapes).program
    (node,) = [n for n in program.graph.nodes if "scaled_dot" in str(n.target)]
    return model, program, node.args


def _agree(model: Any, program: Any) -> None:
    for batch, time in ((2, 7), (1, 1), (3, 16), (1, 2)):
        x = torch.randn(batch, 4, time, 8)
        torch.testing.assert_close(program.module()(x), model(x))


def test_a_mask_that_hides_nothing_at_any_size_is_dropped() -> None:
    model, program, args = _attention(lambda q, k: (q >= 0) & (k >= 0))
    assert args[3:] in ((), (None,))
    _agree(model, program)


def test_a_causal_mask_of_open_size_becomes_is_causal() -> None:
    model, program, args = _attention(lambda q, k: (k <= q) & (q >= 0))
    assert args[3:] == (None, 0.0, True)
    _agree(model, program)


@pytest.mark.parametrize(
    "mask",
    [
        lambda q, k: (k < q) | (q == 0),
        lambda q, k: k <= q + 1,
        lambda q, k: k >= q,
        lambda q, k: (k <= q) & (k > q - 3),
        lambda q, k: q + k >= 1,
        lambda q, k: (k > 0) | (q + k == 0),
    ],
    ids=["strict", "one ahead", "upper", "window", "all but one", "all but the first"],
)
def test_other_masks_of_open_size_stay(mask: Any) -> None:
    model, program, args = _attention(mask)
    assert isinstance(args[3], fx.Node)
    _agree(model, program)
