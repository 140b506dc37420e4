"""FLOP formulas against torch's own counter and against arithmetic done by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from planner.cost.formulas import NO_COST, OpCost, cost_of
from planner.cost.registry import DuplicateFormula, FormulaTable
from planner.graph.op_graph import OpNode, TensorMeta
from planner.graph.view import op_graph


class Apply(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


def nodes_of(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[OpNode, ...]:
    with torch.no_grad():
        program = torch.export.export(Apply(function), inputs, strict=False)
        return op_graph(program.run_decompositions({})).nodes


def flops_of(function: Callable[..., Tensor], *inputs: Tensor) -> int | None:
    total = NO_COST
    for node in nodes_of(function, *inputs):
        total += cost_of(node)
    return total.flops


def counted_by_torch(function: Callable[..., Tensor], *inputs: Tensor) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        function(*inputs)
    return counter.get_total_flops()


def meta(*shape: int, dtype: str = "float32") -> TensorMeta:
    stride = tuple(int(torch.tensor(shape[i + 1 :]).prod()) for i in range(len(shape)))
    return TensorMeta(shape, dtype, stride, "cpu")


def node(op: str, *args: object, out: TensorMeta | None, **kwargs: object) -> OpNode:
    inputs = tuple(arg for arg in (*args, *kwargs.values()) if isinstance(arg, TensorMeta))
    outputs = () if out is None else (out,)
    return OpNode("n", op, args, kwargs, inputs, outputs, "", "", None, ())


MATRIX_CASES = {
    "mm": (torch.mm, (257, 33), (33, 5)),
    "bmm": (torch.bmm, (3, 7, 11), (3, 11, 5)),
    "matmul broadcast": (torch.matmul, (2, 3, 7, 11), (11, 5)),
    "addmm": (torch.addmm, (5,), (7, 11), (11, 5)),
    "baddbmm": (torch.baddbmm, (3, 7, 5), (3, 7, 11), (3, 11, 5)),
    "linear": (F.linear, (2, 9, 33), (17, 33), (17,)),
    "conv1d": (lambda x, w: F.conv1d(x, w, stride=2), (2, 4, 33), (6, 4, 3)),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, padding=1), (2, 4, 9, 7), (6, 4, 3, 3), (6,)),
    "conv2d groups": (lambda x, w: F.conv2d(x, w, groups=4), (2, 4, 9, 7), (8, 1, 3, 3)),
    "conv2d dilation": (lambda x, w: F.conv2d(x, w, dilation=2), (2, 4, 9, 9), (6, 4, 3, 3)),
    "conv3d": (F.conv3d, (1, 2, 5, 6, 7), (3, 2, 2, 2, 2)),
    "transposed": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1),
        (2, 4, 5, 6),
        (4, 3, 3, 3),
    ),
    "transposed groups": (
        lambda x, w: F.conv_transpose2d(x, w, groups=2),
        (2, 4, 5, 6),
        (4, 3, 3, 3),
    ),
}


@pytest.mark.parametrize("name", MATRIX_CASES)
def test_matrix_operators_agree_with_torchs_counter(name: str) -> None:
    function, *shapes = MATRIX_CASES[name]
    inputs = [torch.randn(shape) for shape in shapes]
    assert flops_of(function, *inputs) == counted_by_torch(function, *inputs) > 0


@pytest.mark.parametrize(
    ("left", "right", "out", "flops"),
    [
        ((12, 8), (3, 8, 5), (12, 5), 2 * 12 * 8 * 5),
        ((12, 8), (8, 9), (3, 12, 9), 2 * 12 * 8 * 9),
        ((3, 4, 8), (3, 8, 5), (3, 4, 5), 2 * 3 * 4 * 8 * 5),
    ],
    ids=["rows in groups", "cut along K", "one matrix each"],
)
def test_grouped_products(
    left: tuple[int, ...], right: tuple[int, ...], out: tuple[int, ...], flops: int
) -> None:
    call = node("aten._grouped_mm.default", meta(*left), meta(*right), out=meta(*out))
    assert cost_of(call).flops == flops


def test_attention_on_cpu_counts_both_products() -> None:
    q = torch.randn(2, 4, 64, 16)
    assert flops_of(F.scaled_dot_product_attention, q, q, q) == 4 * 2 * 4 * 64 * 64 * 16


@pytest.mark.parametrize(
    "op",
    [
        "aten._scaled_dot_product_flash_attention.default",
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        "aten._scaled_dot_product_efficient_attention.default",
        "aten._scaled_dot_product_cudnn_attention.default",
    ],
)
def test_attention_variants_count_like_the_whole(op: str) -> None:
    q, k = meta(2, 4, 7, 16), meta(2, 4, 9, 16)
    assert cost_of(node(op, q, k, k, out=q)).flops == 4 * 2 * 4 * 7 * 9 * 16


def test_grouped_attention_counts_query_heads() -> None:
    q, k = meta(2, 8, 7, 16), meta(2, 2, 9, 16)
    call = node("aten.scaled_dot_product_attention.default", q, k, k, out=q, enable_gqa=True)
    assert cost_of(call).flops == 4 * 2 * 8 * 7 * 9 * 16


def test_broadcast_attention_counts_every_output() -> None:
    q, k = torch.randn(1, 3, 4, 8), torch.randn(2, 3, 5, 8)
    assert flops_of(F.scaled_dot_product_attention, q, k, k) == 2 * 2 * 3 * 4 * 5 * (8 + 8)


@pytest.mark.parametrize(("rows", "columns"), [(5, 5), (3, 7), (7, 3), (1, 1)])
def test_causal_attention_counts_visible_pairs_only(rows: int, columns: int) -> None:
    q, k = meta(1, 1, rows, 8), meta(1, 1, columns, 8)
    op = "aten.scaled_dot_product_attention.default"
    visible = int(torch.ones(rows, columns).tril().sum())
    assert cost_of(node(op, q, k, k, None, 0.0, True, out=q)).flops == 4 * visible * 8


def test_causal_position_of_the_flash_variant() -> None:
    q = meta(1, 1, 4, 8)
    op = "aten._scaled_dot_product_flash_attention.default"
    assert cost_of(node(op, q, q, q, 0.0, True, out=q)).flops == 4 * 10 * 8


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (lambda x, w, b: F.layer_norm(x, (8,), w, b), [(3, 8), (8,), (8,)], 7 * 24),
        (lambda x: F.layer_norm(x, (8,)), [(3, 8)], 5 * 24),
        (lambda x, w: F.rms_norm(x, (8,), w), [(3, 8), (8,)], 4 * 24),
        (lambda x, w, b: F.group_norm(x, 2, w, b), [(3, 4, 5), (4,), (4,)], 7 * 60),
        (lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4)), [(3, 4, 5)], 2 * 60),
        (lambda x: F.softmax(x, -1), [(3, 8)], 5 * 24),
        (F.gelu, [(3, 8)], 5 * 24),
        (lambda x: F.gelu(x, approximate="tanh"), [(3, 8)], 9 * 24),
        (F.relu, [(3, 8)], 24),
        (torch.add, [(3, 8), (8,)], 24),
        (lambda x, y: torch.add(x, y, alpha=2), [(3, 8), (8,)], 48),
        (lambda x: x.sum(-1), [(3, 8)], 24),
        (lambda x: x.mean(-1), [(3, 8)], 24 + 3),
        (lambda x: x.amax(-1), [(3, 8)], 24),
        (lambda x: F.max_pool2d(x, 2), [(1, 3, 8, 8)], 3 * 16 * 4),
    ],
)
def test_other_operators(
    function: Callable[..., Tensor], shapes: list[tuple[int, ...]], expected: int
) -> None:
    assert flops_of(function, *(torch.randn(shape) for shape in shapes)) == expected


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.transpose(0, 1),
        lambda x: x.reshape(2, -1),
        lambda x: x[:, 1:].unsqueeze(0).expand(2, -1, -1),
        lambda x: torch.cat([x, x]),
        lambda x: x.to(torch.float64),
        lambda x: F.pad(x, (1, 1)),
    ],
)
def test_views_and_movement_do_no_arithmetic(function: Callable[..., Tensor]) -> None:
    assert flops_of(function, torch.randn(4, 6)) == 0


def test_in_place_operator_costs_like_its_functional_twin() -> None:
    x = meta(3, 8)
    assert cost_of(node("aten.relu_.default", x, out=x)).flops == 24


@pytest.mark.parametrize("op", ["mine.op.default", "aten.einsum.default", "aten._fft_c2c.default"])
def test_unknown_operator_is_unknown_and_not_zero(op: str) -> None:
    x = meta(3, 8)
    assert cost_of(node(op, x, out=x)).flops is None


def test_unknown_is_contagious_for_each_figure_alone() -> None:
    assert OpCost(None, 8) + OpCost(3, 4) == OpCost(None, 12)
    assert OpCost(1, None) + OpCost(3, 4) == OpCost(4, None)


def test_second_formula_for_an_operator_is_refused() -> None:
    table = FormulaTable()
    table.add(["aten.mm"], lambda _: 1)
    with pytest.raises(DuplicateFormula, match=r"aten\.mm"):
        table.add(["aten.bmm", "aten.mm"], lambda _: 2)
