"""Leaves out copies that only bring queries, keys and values into another layout.

Attention reads what is transposed as it lies, as long as the elements of a head do; a copy before
it costs a pass over each of the three.
"""

from __future__ import annotations

import torch
from torch import fx
from torch.export import ExportedProgram

from planner.counted import counted

aten = torch.ops.aten

_ATTENTION = aten.scaled_dot_product_attention.default
_COPIES = (aten.clone.default, aten.contiguous.default)


def read_attention_as_it_lies(program: ExportedProgram) -> tuple[str, ...]:
    """Let attention read the source of each copy that nothing else reads, where the last dimension
    of the source lies as the copy's.
    """
    copies = [node for node in program.graph.nodes if node.target in _COPIES and _is_idle(node)]
    for node in copies:
        (source,) = node.all_input_nodes
        node.replace_all_uses_with(source)
        program.graph.erase_node(node)
    if not copies:
        return ()
    return (f"{counted(len(copies), 'copy', 'copies')} before attention left out",)


def _is_idle(copy: fx.Node) -> bool:
    own, source = copy.meta["val"], copy.all_input_nodes[0].meta["val"]
    reads = [user.target is _ATTENTION and copy in user.args[:3] for user in copy.users]
    lies = own.dim() > 1 and source.stride()[-1] == own.stride()[-1] == 1
    moved = source.stride() != own.stride() and 0 not in source.stride()
    return bool(reads and all(reads) and lies and moved and own.dtype == source.dtype)
