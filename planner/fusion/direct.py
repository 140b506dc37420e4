"""The fused graph as it runs on CUDA: each kernel started from its place, without torch's
dispatcher.

In a bound program every tensor's shape follows from the guarded inputs, so a place can repeat its
own launch; where sizes are open, the one that it keeps for the shapes that come.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from fusion_kernels.launch import Recorded, keep
from fusion_kernels.library import FusedOperator, operator_of


def with_direct_launches(module: fx.GraphModule) -> fx.GraphModule:
    """The same program with its CUDA kernels called directly; `module` itself where it has
    none.
    """
    if not any(_operator(node) for node in module.graph.nodes):
        return module
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in graph.nodes:
        operator = _operator(node)
        if operator is not None:
            node.target = (_OpenPlace if _is_open(node) else _Place)(operator)
    return fx.GraphModule(module, graph)


class _Place:
    """One call of a kernel in one program. The first call goes through the operator and is kept;
    the next start the same launch on new outputs as long as operands are contiguous and aligned.
    """

    def __init__(self, operator: FusedOperator) -> None:
        self._operator = operator
        self._recorded: Recorded | None = None
        # fx names a call's target by these.
        self.__name__ = self.__qualname__ = operator.name
        self.__module__ = __name__

    def __call__(self, *tensors: Tensor) -> Any:
        recorded = self._recorded
        repeated = None if recorded is None else recorded.repeat(tensors)
        if repeated is not None:
            return repeated
        result = self._operator.on_cuda(*tensors)
        if recorded is None:
            self._recorded = self._operator.recorded(*tensors)
        return result


class _OpenPlace:
    """As `_Place`, with a launch for each set of shapes."""

    def __init__(self, operator: FusedOperator) -> None:
        self._operator = operator
        self._recorded: dict[Any, Recorded] = {}
        self.__name__ = self.__qualname__ = operator.name
        self.__module__ = __name__

    def __call__(self, *tensors: Tensor) -> Any:
        key = tuple([tensor.shape for tensor in tensors])
        recorded = self._recorded.get(key)
        repeated = None if recorded is None else recorded.repeat(tensors)
        if repeated is not None:
            return repeated
        result = self._operator.on_cuda(*tensors)
        found = self._operator.recorded(*tensors) if recorded is None else None
        if found is not None:
            keep(self._recorded, key, found)
        return result


def _is_open(node: fx.Node) -> bool:
    """Whether the shape of an operand or of the result is known only at run time."""
    values = [source.meta.get("val") for source in (*node.all_input_nodes, node)]
    flat = [part for v in values for part in (v if isinstance(v, list | tuple) else (v,))]
    sizes = [size for value in flat if isinstance(value, Tensor) for size in value.shape]
    return not all(isinstance(size, int) for size in sizes)


def _operator(node: fx.Node) -> FusedOperator | None:
    value = node.meta.get("val")
    first = value[0] if isinstance(value, list | tuple) else value
    on_cuda = isinstance(first, torch.Tensor) and first.device.type == "cuda"
    return operator_of(node.target) if on_cuda and node.op == "call_function" else None
