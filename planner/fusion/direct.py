"""The fused graph as it runs on CUDA: each kernel started from its place, without torch's
dispatcher.

In a bound program every tensor's shape follows from the guarded inputs, so a place can repeat its
own launch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from fusion_kernels.launch import Recorded
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
            node.target = _Place(operator)
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
        if recorded is not None and recorded.fits(tensors):
            return recorded.repeat(tensors)
        result = self._operator.on_cuda(*tensors)
        if recorded is None:
            self._recorded = self._operator.recorded(*tensors)
        return result


def _operator(node: fx.Node) -> FusedOperator | None:
    value = node.meta.get("val")
    first = value[0] if isinstance(value, list | tuple) else value
    on_cuda = isinstance(first, torch.Tensor) and first.device.type == "cuda"
    return operator_of(node.target) if on_cuda and node.op == "call_function" else None
