"""What the tests of operator support name their fixtures by, and torch's own ONNX exporter."""

from collections.abc import Callable

import torch

from planner.graph.op_graph import OpNode, TensorMeta
from planner.support.tables import BackendTable

MakeNode = Callable[..., OpNode]
MakeTensor = Callable[..., TensorMeta]
TableFrom = Callable[..., BackendTable]


def exports_to_onnx(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> bool:
    """Whether the exporter takes the function."""

    class Model(torch.nn.Module):
        def forward(self, *args: torch.Tensor) -> torch.Tensor:
            return function(*args)

    try:
        torch.onnx.export(Model().eval(), inputs, dynamo=True, verbose=False)
    except torch.onnx.OnnxExporterError:
        return False
    return True
