"""Attention masks that the graph itself makes: folded to constants, and dropped when provably all
true.

A tracer makes transformers build its mask explicitly although eager skips it; a mask keeps
attention off the fast kernels. Only what depends on no input, parameter or buffer counts as
constant: those can change after the capture.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from planner.passes.constants import add_constant

aten = torch.ops.aten

# Folding may not turn a few bytes of arithmetic into a large stored tensor.
_LARGEST_FOLD = 1 << 20

_ATTENTION = aten.scaled_dot_product_attention.default
_MASK_POSITION = 3
_AND = {aten.__and__.Tensor, aten.bitwise_and.Tensor, aten.logical_and.default}
_RANDOM = torch.Tag.nondeterministic_seeded


def fold_constants(program: ExportedProgram) -> tuple[str, ...]:
    """Replace each largest subgraph that depends on no input by the tensor it computes."""
    constant = _constant_nodes(program.graph)
    largest = {
        _stored_part(node): None
        for node in constant
        if any(user not in constant for user in node.users)
    }
    values = {node: _evaluate(node) for node in largest if _size(node) <= _LARGEST_FOLD}
    for node, value in values.items():
        node.replace_all_uses_with(add_constant(program, f"folded_{node.name}", value))
    return (f"{len(values)} constant subgraphs folded",) if values else ()


def simplify_masks(program: ExportedProgram) -> tuple[str, ...]:
    """Drop attention masks that are provably all true (or all zero when added) and true operands
    of `and`; turn exactly causal ones into `is_causal`.

    Proof is evaluation: the mask depends on nothing but the graph, and every element is looked at.
    """
    notes: list[str] = []
    constants = _values_of_constants(program)
    for node in list(program.graph.nodes):
        if node.target in _AND:
            notes += _simplify_and(program, node, constants)
    attention = [node for node in program.graph.nodes if node.target is _ATTENTION]
    dropped = sum(_drop_mask(node, constants) for node in attention)
    causal = sum(_make_causal(node, constants) for node in attention)
    if dropped:
        notes.append(f"{dropped} attention masks dropped: constant and all true")
    if causal:
        notes.append(f"{causal} attention masks replaced by is_causal: constant and exactly causal")
    return tuple(notes)


def _constant_nodes(graph: fx.Graph) -> dict[fx.Node, None]:
    constant: dict[fx.Node, None] = {}
    for node in graph.nodes:
        if (
            node.op == "call_function"
            and isinstance(node.target, torch._ops.OpOverload)
            and not node.target._schema.is_mutable
            and _RANDOM not in node.target.tags
            and all(source in constant for source in node.all_input_nodes)
            and isinstance(node.meta.get("val"), torch.Tensor)
            and all(isinstance(n, int) for n in node.meta["val"].shape)
        ):
            constant[node] = None
    return constant


def _stored_part(node: fx.Node) -> fx.Node:
    """What to store of a constant: an expansion costs nothing in the graph and much when
    stored.
    """
    while node.target is aten.expand.default and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _size(node: fx.Node) -> int:
    return int(node.meta["val"].numel())


def _evaluate(node: fx.Node) -> torch.Tensor:
    values: dict[fx.Node, Any] = {}

    def run(current: fx.Node) -> Any:
        if current not in values:
            args, kwargs = fx.node.map_arg((current.args, current.kwargs), run)
            assert callable(current.target)
            values[current] = current.target(*args, **kwargs)
        return values[current]

    with torch.no_grad():
        value: torch.Tensor = run(node)
    return value


def _values_of_constants(program: ExportedProgram) -> dict[str, torch.Tensor]:
    lifted = program.graph_signature.inputs_to_lifted_tensor_constants
    return {
        name: program.constants[target]
        for name, target in lifted.items()
        if isinstance(program.constants.get(target), torch.Tensor)
    }


def _known_value(node: Any, constants: dict[str, torch.Tensor]) -> torch.Tensor | None:
    """The distinct elements of a constant, looking through expansions."""
    while isinstance(node, fx.Node) and node.target is aten.expand.default:
        node = node.args[0]
    return constants.get(node.name) if isinstance(node, fx.Node) else None


def _masks_nothing(value: torch.Tensor | None) -> bool:
    if value is None:
        return False
    return bool(value.all()) if value.dtype is torch.bool else not bool(value.any())


def _drop_mask(node: fx.Node, constants: dict[str, torch.Tensor]) -> bool:
    if node.target is not _ATTENTION or len(node.args) <= _MASK_POSITION:
        return False
    if not _masks_nothing(_known_value(node.args[_MASK_POSITION], constants)):
        return False
    node.update_arg(_MASK_POSITION, None)
    return True


def _make_causal(node: fx.Node, constants: dict[str, torch.Tensor]) -> bool:
    """A constant boolean mask that is the lower triangle of a square is what is_causal means."""
    if len(node.args) <= _MASK_POSITION:
        return False
    value = _known_value(node.args[_MASK_POSITION], constants)
    if value is None or value.dtype is not torch.bool or value.ndim < 2:
        return False
    rows, columns = value.shape[-2:]
    if rows != columns or not torch.equal(value, torch.ones_like(value).tril()):
        return False
    if any(node.args[_MASK_POSITION + 1 :]):
        return False
    node.args = (*node.args[:_MASK_POSITION], None, 0.0, True)
    return True


def _simplify_and(
    program: ExportedProgram, node: fx.Node, constants: dict[str, torch.Tensor]
) -> list[str]:
    """x & true is x, expanded to the result's shape; only for booleans."""
    for index in (0, 1):
        known = _known_value(node.args[index], constants)
        other = node.args[1 - index]
        if known is None or known.dtype is not torch.bool or not bool(known.all()):
            continue
        if not isinstance(other, fx.Node) or other.meta["val"].dtype is not torch.bool:
            continue
        shape = list(node.meta["val"].shape)
        with program.graph.inserting_before(node):
            expanded = program.graph.call_function(aten.expand.default, (other, shape))
        expanded.meta = {**node.meta, "val": other.meta["val"].expand(shape)}
        node.replace_all_uses_with(expanded)
        program.graph.erase_node(node)
        return [f"{node.name}: `and` with an all-true constant removed"]
    return []
