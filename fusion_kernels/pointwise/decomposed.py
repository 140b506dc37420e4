"""Operators that torch itself expresses by others: its decomposition is traced and lowered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import torch
from torch import fx
from torch._decomp import decomposition_table
from torch.fx.experimental.proxy_tensor import make_fx

from fusion_kernels.builder import Builder, Lowering, NotLowered, Value

_Known = tuple[tuple[str, Any], ...]


def decomposed(names: Iterable[str], table: Mapping[str, Lowering]) -> dict[str, Lowering]:
    """A lowering for each operator name ("aten.elu.default"), through those of `table`."""
    return {name: _lowering(name, table) for name in names}


def overload(name: str) -> Any:
    """The operator of a name such as "aten.elu.default"."""
    namespace, operator, form = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), operator), form)


def _lowering(name: str, table: Mapping[str, Lowering]) -> Lowering:
    def lower(b: Builder, *args: Value, **kwargs: Value) -> str:
        keys = [*map(str, range(len(args))), *kwargs]
        values = [*args, *kwargs.values()]
        given = tuple((key, _known(b, value)) for key, value in zip(keys, values, strict=True))
        graph = _traced(name, given, frozenset(table))
        tensors = [value for value in values if isinstance(value, str) and value in b]
        return _walk(b, graph, tensors, table)

    return lower


def _known(b: Builder, value: Value) -> Any:
    """What a trace depends on: a tensor's dtype, or the literal (1, 1.0 and True apart)."""
    if isinstance(value, str) and value in b:
        return ("tensor", b.dtype_of(value))
    return (type(value).__name__, tuple(value) if isinstance(value, list) else value)


def _walk(b: Builder, graph: fx.Graph, tensors: list[str], table: Mapping[str, Lowering]) -> str:
    names: dict[fx.Node, Any] = {}
    wanted, remaining = b.result_dtype, iter(tensors)
    result: Any = None
    for node in graph.nodes:
        if node.op == "placeholder":
            names[node] = next(remaining)
        elif node.op == "output":
            result = names[node.args[0]]
        else:
            lowering = table.get(str(node.target))
            if lowering is None:
                raise NotLowered(f"{node.target} has no kernel expression")
            b.result_dtype = _name(node.meta["val"].dtype)
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), names.__getitem__)
            args = [_name(arg) if isinstance(arg, torch.dtype) else arg for arg in args]
            kwargs = {
                key: _name(arg) if isinstance(arg, torch.dtype) else arg
                for key, arg in kwargs.items()
            }
            names[node] = b.as_result(lowering(b, *args, **kwargs))
    b.result_dtype = wanted
    return str(result)


@cache
def _traced(name: str, given: _Known, kept: frozenset[str]) -> fx.Graph:
    """The operator's decomposition on tensors of two elements, into operators of the table."""
    target = overload(name)
    tensors = [
        torch.ones(2, dtype=getattr(torch, known[1])) for _, known in given if known[0] == "tensor"
    ]

    def call(*values: torch.Tensor) -> Any:
        remaining = iter(values)
        arguments = {
            key: next(remaining) if known[0] == "tensor" else known[1] for key, known in given
        }
        positional = [value for key, value in arguments.items() if key.isdigit()]
        return target(*positional, **{k: v for k, v in arguments.items() if not k.isdigit()})

    rules: Any = {op: rule for op, rule in decomposition_table.items() if str(op) not in kept}
    if target in decomposition_table:
        rules[target] = decomposition_table[target]
    try:
        graph = make_fx(call, decomposition_table=rules, tracing_mode="fake")(*tensors).graph
    except (RuntimeError, NotImplementedError, TypeError) as error:
        raise NotLowered(f"{name} does not decompose: {error}") from error
    if any(str(node.target) == name for node in graph.nodes):
        raise NotLowered(f"{name} has no decomposition")
    return graph


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
