"""Takes the bias out of a linear where a fusable operator follows, and puts back what no region
took.

Split, the bias can ride along in a fused kernel. On CPU a linear with bias first copies the bias
into the result and then adds the product, a whole pass over the output; on CUDA the GEMM's
epilogue adds it for free.
"""

from __future__ import annotations

import torch
from torch import fx
from torch.export import ExportedProgram

from fusion_kernels.lowering import LOWERINGS
from planner.counted import counted
from planner.graph.view import op_name

aten = torch.ops.aten

SPLIT = "split_bias"
"""Meta key of an addition that stands for a linear's bias."""


def split_linear_bias(program: ExportedProgram) -> tuple[str, ...]:
    """linear(x, w, b) -> linear(x, w) + b wherever every user is an operator that a region may
    hold.
    """
    count = 0
    for node in list(program.graph.nodes):
        if node.target is aten.linear.default and _worth_splitting(node):
            _split(program.graph, node)
            count += 1
    return (f"{counted(count, 'bias', 'biases')} taken out of linears",) if count else ()


def merge_linear_bias(program: ExportedProgram) -> tuple[str, ...]:
    """The reverse, for every bias that no region has taken."""
    count = merge_biases(program.graph)
    return (f"{counted(count, 'bias', 'biases')} put back into linears",) if count else ()


def merge_biases(graph: fx.Graph) -> int:
    """Put back every split bias of `graph` whose linear has no other user; returns how many."""
    count = 0
    for node in [node for node in graph.nodes if _is_split_bias(node)]:
        linear, bias = node.args
        linear.args = (*linear.args[:2], bias)
        node.replace_all_uses_with(linear)
        graph.erase_node(node)
        _after(linear, bias)
        count += 1
    return count


def _is_split_bias(node: fx.Node) -> bool:
    """Calls that took a bias over inherit its meta, so the key alone does not tell."""
    if SPLIT not in node.meta or node.target is not aten.add.Tensor:
        return False
    linear = node.args[0]
    return (
        isinstance(linear, fx.Node)
        and linear.target is aten.linear.default
        and len(linear.args) == 2
        and list(linear.users) == [node]
    )


def _worth_splitting(node: fx.Node) -> bool:
    return (
        len(node.args) > 2
        and node.args[2] is not None
        and bool(node.users)
        and all(user.op == "call_function" and op_name(user) in LOWERINGS for user in node.users)
    )


def _split(graph: fx.Graph, node: fx.Node) -> None:
    x, weight, bias = node.args
    with graph.inserting_after(node):
        added = graph.create_node(
            "call_function", aten.add.Tensor, (node, bias), name=f"{node.name}_bias"
        )
    added.meta = {**node.meta, SPLIT: node.name}
    node.replace_all_uses_with(added, delete_user_cb=lambda user: user is not added)
    node.args = (x, weight)


def _after(linear: fx.Node, bias: object) -> None:
    """A linear must stand after its bias when that is computed, not a parameter."""
    if isinstance(bias, fx.Node) and bias > linear:
        bias.append(linear)
