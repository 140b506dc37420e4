"""A linear and the activation after it as one call of the library, which BLAS computes as it writes
the product.

`aten._addmm_activation` is cublasLt's epilogue on CUDA. Its GELU is the tanh form there and the
erf form on CPU, so it takes the place of that one alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from planner.counted import counted
from planner.graph.view import op_name
from planner.passes.derived import Derived, add_derived, fixed_weights
from planner.passes.insert import insert_call
from planner.passes.special_values import MISPLACED, agree, as_exact, drawn_like, holds

aten = torch.ops.aten

_PRODUCTS = {aten.linear.default, aten.matmul.default, aten.mm.default, aten.addmm.default}
_ROWS = 256
"""As many are compared with float64."""


def activated_linears(program: ExportedProgram) -> tuple[str, ...]:
    """linear -> relu or gelu of linears without bias, where nothing else reads the product, in one
    call each with a bias of zeros, if NaN and infinities come out of it as they do in eager.

    With a bias the activation is a kernel's or the library's, region by region. So it is where
    what reads it may be of a kernel with it, as the other factor of a GeGLU.
    """
    weights = fixed_weights(program)
    places = [node for node in program.graph.nodes if _takes_linear(node, weights)]
    tried: dict[Hashable, bool] = {}
    right = [node for node in places if _is_right(node, tried)]
    for node in right:
        _activate(program, node, weights)
    notes = []
    if right:
        notes.append(f"{counted(len(right), 'linear')} with the activation after it")
    if wrong := len(places) - len(right):
        notes.append(
            f"{counted(wrong, 'linear')} apart from the activation: {MISPLACED}, or is less exact"
        )
    return tuple(notes)


def gelu_or_relu(activation: fx.Node, device: str) -> bool | None:
    """Whether the library's activation is a GELU (True) or a ReLU; None where the node is
    neither.
    """
    if op_name(activation) == "aten.relu.default":
        return False
    form = activation.kwargs.get("approximate", "none")
    wanted = "none" if device.startswith("cpu") else "tanh"
    return True if op_name(activation) == "aten.gelu.default" and form == wanted else None


def takes_rows(x: Any, weight: Any, bias: Any = None) -> bool:
    """Whether the values are rows that lie one after another, one weight matrix, and a vector of
    biases where there is one, none of them empty and all of one dtype.
    """
    values = [value for value in (x, weight, bias) if value is not None]
    if not all(isinstance(value, Tensor) for value in values):
        return False
    known = all(isinstance(size, int) and size > 0 for value in values for size in value.shape)
    one_dtype = all(value.dtype == x.dtype for value in values)
    shaped = weight.dim() == 2 and x.dim() > 0 and (bias is None or bias.dim() == 1)
    return known and one_dtype and shaped and x.is_contiguous()


def put_activated(
    graph: fx.Graph, activation: fx.Node, linear: fx.Node, bias: fx.Node, *, gelu: bool
) -> None:
    """Replace `activation` by the library's call on the operands of `linear` and `bias`."""
    x, weight = linear.args[:2]
    assert isinstance(x, fx.Node)
    shape = tuple(activation.meta["val"].shape)

    def call(target: Any, *args: Any, **kwargs: bool) -> fx.Node:
        return insert_call(graph, activation, target, args, kwargs)

    rows = call(aten.view.default, x, (-1, x.meta["val"].shape[-1]))
    turned = call(aten.t.default, weight)
    product = call(aten._addmm_activation.default, bias, rows, turned, use_gelu=gelu)
    activation.replace_all_uses_with(call(aten.view.default, product, shape))
    graph.erase_node(activation)


def library_is_right(
    activation: fx.Node, linear: fx.Node, bias: fx.Node | None = None, *, gelu: bool
) -> bool:
    """Whether NaN and infinities come out of the library's call where they come out of the
    operators, at the sizes and layouts of the nodes, and it is as exact: cublasLt's GELU in float32
    is ten times as far from the truth as eager's.
    """
    return holds(lambda: _agrees(activation, linear, bias, gelu=gelu))


def _agrees(activation: fx.Node, linear: fx.Node, bias: fx.Node | None, *, gelu: bool) -> bool:
    x, weight = (
        drawn_like(source.meta["val"], special=number == 0)
        for number, source in enumerate(linear.all_input_nodes)
    )
    added = None if bias is None else drawn_like(bias.meta["val"], special=False)
    rows = x.view(-1, x.shape[-1])
    target: Any = activation.target
    with torch.no_grad():
        vector = _zeros(weight) if added is None else added
        out = aten._addmm_activation(vector, rows, weight.t(), use_gelu=gelu)
        wanted = target(aten.linear(rows, weight, added), **activation.kwargs)
        few, matrix = rows[:_ROWS].double(), weight.double()
        bias64 = None if added is None else added.double()
        exact = target(aten.linear(few, matrix, bias64), **activation.kwargs)
    return agree(out, wanted) and as_exact(out[:_ROWS], wanted[:_ROWS], exact)


def _takes_linear(node: fx.Node, weights: Mapping[str, str]) -> bool:
    value = node.meta.get("val")
    if node.op != "call_function" or not isinstance(value, Tensor):
        return False
    if gelu_or_relu(node, value.device.type) is None:
        return False
    linear = node.args[0]
    if not isinstance(linear, fx.Node) or linear.target is not aten.linear.default:
        return False
    operands = linear.all_input_nodes
    if len(operands) != 2 or operands[1].name not in weights or list(linear.users) != [node]:
        return False
    if not all(user.op == "output" or user.target in _PRODUCTS for user in node.users):
        return False
    return takes_rows(operands[0].meta["val"], operands[1].meta["val"])


def _is_right(node: fx.Node, tried: dict[Hashable, bool]) -> bool:
    linear: Any = node.args[0]
    values = [source.meta["val"] for source in linear.all_input_nodes]
    gelu = bool(gelu_or_relu(node, values[0].device.type))
    form = (gelu, *((v.shape, v.stride(), v.dtype, v.device) for v in values))
    if form not in tried:
        tried[form] = library_is_right(node, linear, gelu=gelu)
    return tried[form]


def _activate(program: ExportedProgram, node: fx.Node, weights: Mapping[str, str]) -> None:
    linear: Any = node.args[0]
    weight = linear.args[1]
    zeros = add_derived(program, f"{linear.name}_zeros", Derived((weights[weight.name],), _zeros))
    gelu = bool(gelu_or_relu(node, weight.meta["val"].device.type))
    put_activated(program.graph, node, linear, zeros, gelu=gelu)
    program.graph.erase_node(linear)


def _zeros(weight: Tensor) -> Tensor:
    """A bias that adds nothing: [N] for a weight of [N, K]."""
    return weight.new_zeros(weight.shape[0])
