"""Kernels of functions on a CUDA device, traced without data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from fusion_kernels.emit.source import Provenance, emit
from fusion_kernels.load import load_kernel
from planner.fusion.lower import input_hint, lower


@pytest.fixture
def kernel_of() -> Callable[..., Callable[..., Any]]:
    """The launcher of every operator that a function of tensors calls; the tensors may be meta."""
    return _kernel_of


def _kernel_of(function: Callable[..., Any], *tensors: Tensor) -> Callable[..., Any]:
    graph = make_fx(function, tracing_mode="fake", pre_dispatch=True)(*tensors).graph
    calls = [node for node in graph.nodes if node.op == "call_function"]
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    lowered = lower(calls, "region", input_hint({}))
    order = [placeholders.index(node) for node in lowered.inputs]
    source = emit(lowered.region, Provenance("test"))
    launcher = load_kernel(source.text, source.name).launcher

    def run(*given: Tensor) -> tuple[Tensor, ...]:
        arguments = lowered.arguments([given[position] for position in order])
        return lowered.returned(launcher(*arguments))

    return run
