"""A part of a graph as a module of its own: to measure it, to compare with it, to run it in
float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from planner.fusion.comparisons import compared_dtype, is_rounded, rounded_number
from planner.fusion.exact import NEXT_AFTER, nextafter, polygamma, takes_whole_numbers
from planner.fusion.grouped_product import grouped_product
from planner.graph.autocast import without_autocast
from planner.graph.randomness import draws_numbers
from planner.graph.view import CASTS, op_name


@dataclass(frozen=True, slots=True)
class Subgraph:
    """`module(*inputs)` returns a tuple with the value of each node in `outputs`.

    `copies` maps the nodes of the whole graph to those of the module's.
    """

    module: fx.GraphModule
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    copies: Mapping[fx.Node, fx.Node]


def extract(
    nodes: Sequence[fx.Node],
    inputs: Sequence[fx.Node] | None = None,
    outputs: Sequence[fx.Node] | None = None,
) -> Subgraph:
    """The nodes (in graph order) as a module.

    `inputs` fixes the order of the arguments, by default that of first use; `outputs` are by
    default the nodes that others read.
    """
    inside = set(nodes)
    feeding = dict.fromkeys(
        source for node in nodes for source in node.all_input_nodes if source not in inside
    )
    ordered = tuple(inputs) if inputs is not None else tuple(feeding)
    if outputs is None:
        outputs = [node for node in nodes if any(user not in inside for user in node.users)]
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in ordered:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = {"val": node.meta["val"]}
    for node in nodes:
        copies[node] = graph.node_copy(node, lambda source: copies[source])
    graph.output(tuple(copies[node] for node in outputs))
    return Subgraph(fx.GraphModule(torch.nn.Module(), graph), ordered, tuple(outputs), copies)


def run_in_float64(module: fx.GraphModule, values: Sequence[Any]) -> tuple[Any, ...]:
    """The module's result with every floating tensor in float64, every complex one in complex128.

    Casts that the program itself makes are applied: the value is rounded to the cast's dtype and
    goes on in float64. So are those of comparisons, which bring a number to the tensor's dtype.
    Operators that draw random numbers run in their own dtypes, where they draw the program's
    numbers; a neighbour is one among the values of the program's dtype. A floating function of
    integers is computed in float64. Nothing else is rounded.
    """
    with torch.no_grad(), without_autocast():
        result: tuple[Any, ...] = _Float64(module).run(*map(widened, values))
    return result


def widened(value: Any) -> Any:
    """A tensor as `run_in_float64` takes it; anything else as it is."""
    if isinstance(value, torch.Tensor) and value.is_complex():
        return value.to(torch.complex128)
    is_floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if is_floating else value


def _epsilon(dtype: torch.dtype) -> dict[str, float]:
    """Eager takes that of the dtype it computes in, float32 for the 16-bit ones."""
    return {"eps": torch.finfo(torch.promote_types(dtype, torch.float32)).eps}


def _limits(dtype: torch.dtype) -> dict[str, float]:
    if not dtype.is_floating_point:
        return {}
    return {"posinf": torch.finfo(dtype).max, "neginf": torch.finfo(dtype).min}


_OWN_DEFAULTS: dict[str, Callable[[torch.dtype], dict[str, float]]] = {
    "aten.rms_norm.default": _epsilon,
    "aten.nan_to_num.default": _limits,
}
# Operators that take the dtype to compute in.
_WITH_DTYPE = (
    *("aten.softmax.int", "aten.log_softmax.int", "aten.linalg_vector_norm.default"),
    *("aten.sum.default", "aten.sum.dim_IntList", "aten.nansum.default", "aten.cumsum.default"),
    *("aten.mean.default", "aten.mean.dim", "aten.prod.default", "aten.prod.dim_int"),
)


# An operator may lay its float64 result out otherwise, as attention does, so that a view copies.
_INSTEAD: dict[str, Callable[..., Any]] = {
    "aten._grouped_mm.default": grouped_product,
    "aten.view.default": torch.reshape,
    "aten._unsafe_view.default": torch.reshape,
    "aten.polygamma.default": polygamma,
    "aten.special_polygamma.default": polygamma,
}


class _Float64(fx.Interpreter):
    def run_node(self, n: fx.Node) -> Any:
        dtype = compared_dtype(n)
        if dtype is not None:
            result = self._compared(n, dtype)
        elif draws_numbers(n):
            result = self._drawn(n)
        elif n.op == "call_function" and op_name(n) in _OWN_DEFAULTS:
            result = self._with_own_defaults(n)
        elif n.op == "call_function" and op_name(n) in _WITH_DTYPE:
            result = self._in_float64(n)
        elif op_name(n) == NEXT_AFTER:
            x, y = self.fetch_args_kwargs_from_env(n)[0]
            result = nextafter(x, y, n.meta["val"].dtype)
        elif n.op == "call_function" and op_name(n) in _INSTEAD:
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            result = _INSTEAD[op_name(n)](*args, **kwargs)
        else:
            result = super().run_node(n)
        if n.op == "call_function" and op_name(n) in CASTS:
            result = result.to(n.meta["val"].dtype)
        return widened(result)

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> tuple[Any, Any]:
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        if takes_whole_numbers(n):
            args, kwargs = pytree.tree_map_only(torch.Tensor, torch.Tensor.double, (args, kwargs))
        return args, kwargs

    def _compared(self, n: fx.Node, dtype: torch.dtype) -> Any:
        given, _ = self.fetch_args_kwargs_from_env(n)
        pairs = zip(n.args, given, strict=True)
        operands = [_rounded(x, dtype) if is_rounded(arg, dtype) else x for arg, x in pairs]
        return self.call_function(n.target, tuple(operands), {})

    def _with_own_defaults(self, n: fx.Node) -> Any:
        """Arguments left out mean what they mean in the program's dtype, not in float64."""
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        names = [argument.name for argument in n.target._schema.arguments]  # type: ignore[union-attr]
        given = dict(zip(names[1:], args[1:], strict=False)) | kwargs
        for name, value in _OWN_DEFAULTS[op_name(n)](n.meta["val"].dtype).items():
            if given.get(name) is None:
                given[name] = value
        return self.call_function(n.target, args[:1], given)

    def _in_float64(self, n: fx.Node) -> Any:
        """A floating dtype to compute in is float64 here."""
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        args, kwargs = pytree.tree_map_only(torch.dtype, _float64, (args, kwargs))
        return self.call_function(n.target, args, kwargs)

    def _drawn(self, n: fx.Node) -> Any:
        def narrowed(source: fx.Node) -> Any:
            value = self.env[source]
            is_tensor = isinstance(value, torch.Tensor)
            return value.to(source.meta["val"].dtype) if is_tensor else value

        args, kwargs = fx.node.map_arg((n.args, n.kwargs), narrowed)
        return self.call_function(n.target, args, kwargs)


def _float64(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype.is_floating_point else dtype


def _rounded(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype).double()
    return rounded_number(value, dtype)
