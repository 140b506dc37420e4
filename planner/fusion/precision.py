"""`--precision high`: which casts a kernel leaves out because they only lose bits, and a graph
without them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, get_args

import torch
from torch import fx
from torch.export import ExportedProgram

from planner.counted import counted
from planner.errors import FuseplanError
from planner.graph.view import CASTS, op_name
from planner.passes.cancel_pairs import keeps_every_value
from planner.report.model import Precision

_NARROW = (torch.float16, torch.bfloat16)
_LOSSY = "only_loses_bits"


class UnknownPrecision(FuseplanError):
    """A precision that there is not."""


def require_precision(name: str) -> None:
    """Raises `UnknownPrecision` for a name that is not a `Precision`."""
    if name not in get_args(Precision):
        known = " or ".join(get_args(Precision))
        raise UnknownPrecision(f"There is no precision '{name}'. Use {known}.")


def mark_lossy_casts(program: ExportedProgram) -> tuple[str, ...]:
    """Mark the casts from a floating dtype to float16 or bfloat16 that lose bits. A region leaves
    a marked one out where `unrounded` says so.
    """
    found = [node for node in program.graph.nodes if _loses_bits(node)]
    for node in found:
        node.meta[_LOSSY] = True
    return (f"{counted(len(found), 'cast')} may be left out by a kernel",) if found else ()


def unrounded(nodes: Sequence[fx.Node], results: Collection[fx.Node]) -> tuple[fx.Node, ...]:
    """The marked casts among `nodes`, a region in graph order, that the region leaves out: they are
    none of its `results`, and nothing that is not floating, a comparison or an index say, is made
    of them.
    """
    exact: set[fx.Node] = set()
    for node in reversed(nodes):
        if not _is_floating(node) or any(user in exact for user in node.users):
            exact.add(node)
    return tuple(
        node
        for node in nodes
        if _LOSSY in node.meta
        and op_name(node) in CASTS
        and node not in exact
        and node not in results
    )


def without_casts(module: fx.GraphModule, names: Collection[str]) -> fx.GraphModule:
    """A copy of `module` in which the casts of these names are what they cast. Its dtypes are for
    a run in which every floating tensor has one dtype.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        if node.name in names:
            source: Any = node.args[0]
            copies[node] = copies[source]
        else:
            copies[node] = graph.node_copy(node, lambda source: copies[source])
    return fx.GraphModule(module, graph)


def _loses_bits(node: fx.Node) -> bool:
    if op_name(node) not in CASTS or not isinstance(node.args[0], fx.Node):
        return False
    source, result = (n.meta.get("val") for n in (node.args[0], node))
    return (
        isinstance(source, torch.Tensor)
        and isinstance(result, torch.Tensor)
        and source.is_floating_point()
        and result.dtype in _NARROW
        and not keeps_every_value(source.dtype, result.dtype)
    )


def _is_floating(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()
