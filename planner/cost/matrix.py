"""FLOP formulas of the operators that run on matrix units: products, convolutions, attention.

A multiplication and an addition count one each, so a product of [M, K] and [K, N] is 2*M*K*N. A
bias is not counted, as in torch.utils.flop_counter.
"""

from __future__ import annotations

from math import prod

from planner.cost.registry import FlopFormula, FormulaTable, out_numel, tensor_arg
from planner.graph.op_graph import OpNode


def register(table: FormulaTable) -> None:
    """File the formulas of this module."""
    table.add(_aten("mm bmm matmul mv dot vdot inner _scaled_mm _int_mm"), _product(0, "self"))
    table.add(_aten("linear"), _product(0, "input"))
    table.add(_aten("addmm _addmm_activation addmv"), _product(1, "mat1"))
    table.add(_aten("baddbmm"), _product(1, "batch1"))
    table.add(_aten("addbmm"), _addbmm)
    table.add(_aten("_grouped_mm"), _grouped)
    table.add(_aten("outer"), lambda node: out_numel(node))
    table.add(
        _aten(
            "conv1d conv2d conv3d cudnn_convolution mkldnn_convolution cudnn_convolution_relu "
            "cudnn_convolution_add_relu miopen_convolution _slow_conv2d_forward conv_depthwise3d "
            "_conv_depthwise2d"
        ),
        lambda node: _convolution(node, transposed=False),
    )
    table.add(
        _aten("convolution _convolution convolution_overrideable"),
        lambda node: _convolution(node, transposed=bool(node.arg(6, "transposed", False))),
    )
    table.add(
        _aten("conv_transpose1d conv_transpose2d conv_transpose3d"),
        lambda node: _convolution(node, transposed=True),
    )
    for name, position in _CAUSAL_ARGUMENT.items():
        table.add(_aten(name), _attention(position))


# Position of `is_causal` in each variant's schema.
_CAUSAL_ARGUMENT = {
    "scaled_dot_product_attention": 5,
    "_scaled_dot_product_attention_math": 5,
    "_scaled_dot_product_fused_attention_overrideable": 5,
    "_scaled_dot_product_flash_attention": 4,
    "_scaled_dot_product_flash_attention_for_cpu": 4,
    "_scaled_dot_product_efficient_attention": 6,
    "_scaled_dot_product_cudnn_attention": 6,
}


def _aten(names: str) -> tuple[str, ...]:
    return tuple(f"aten.{name}" for name in names.split())


def _product(position: int, name: str) -> FlopFormula:
    """2 * output elements * K, with K the last dimension of the left operand [..., M, K]."""

    def formula(node: OpNode) -> int | None:
        left, numel = tensor_arg(node, position, name), out_numel(node)
        if left is None or numel is None or not left.shape:
            return None
        return 2 * numel * left.shape[-1]

    return formula


def _addbmm(node: OpNode) -> int | None:
    """Sum over the batch of [B, N, M] x [B, M, P]: 2*B*N*M*P."""
    left, right = tensor_arg(node, 1, "batch1"), tensor_arg(node, 2, "batch2")
    if left is None or right is None:
        return None
    return 2 * left.numel * right.shape[-1]


def _grouped(node: OpNode) -> int | None:
    """Groups of rows or columns, each with a matrix of its own: 2 * output elements * K. Two flat
    operands are cut along K, so that the groups' products together are one of [M, K] and [K, N].
    """
    left, right = tensor_arg(node, 0, "self"), tensor_arg(node, 1, "mat2")
    numel = out_numel(node)
    if left is None or right is None or numel is None:
        return None
    if len(left.shape) == len(right.shape) == 2:
        return 2 * left.numel * right.shape[-1]
    return 2 * numel * left.shape[-1]


def _convolution(node: OpNode, *, transposed: bool) -> int | None:
    """2 * batch * positions * weight elements.

    Each output position (input position when transposed) of a batch element meets every weight
    once; a grouped weight [C_out, C_in / groups, *kernel] holds the division already.
    """
    source, weight = tensor_arg(node, 0, "input"), tensor_arg(node, 1, "weight")
    if source is None or weight is None or not node.outputs:
        return None
    spatial = len(weight.shape) - 2
    shape = source.shape if transposed else node.outputs[0].shape
    batch = shape[0] if len(shape) == spatial + 2 else 1
    return 2 * batch * prod(shape[len(shape) - spatial :]) * weight.numel


def _attention(causal_position: int) -> FlopFormula:
    """Two products over the visible query-key pairs: 2*B*H*pairs*(D + D_v), 4*B*H*S_q*S_k*D when
    D_v = D.

    B and H are the output's: operands broadcast there, and with grouped key/value heads each
    query head still does its own products. `is_causal` counts the pairs on and below the diagonal
    only, about half: kernels skip the rest, and an attainable time must not include it
    (torch.utils.flop_counter counts the full square). An explicit mask counts the full square.
    Softmax and scale are not counted.
    """

    def formula(node: OpNode) -> int | None:
        query, key, value = (
            tensor_arg(node, position, name)
            for position, name in enumerate(("query", "key", "value"))
        )
        if query is None or key is None or value is None or not node.outputs:
            return None
        rows, width = query.shape[-2:]
        heads = node.outputs[0].shape[:-2]
        columns = key.shape[-2]
        pairs = rows * columns
        if node.arg(causal_position, "is_causal", False):
            pairs = _pairs_below_diagonal(rows, columns)
        return 2 * prod(heads) * pairs * (width + value.shape[-1])

    return formula


def _pairs_below_diagonal(rows: int, columns: int) -> int:
    """Query i sees keys 0..i: torch aligns the causal mask to the upper left corner."""
    full = max(0, rows - columns)
    ramp = min(rows, columns)
    return ramp * (ramp + 1) // 2 + full * columns
