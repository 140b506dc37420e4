"""The leaf operators that a composite operator runs for given inputs, found by running it on
tensors without data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from planner.graph.op_graph import OpNode, TensorMeta
from planner.support.dispatcher import is_composite_implicit
from planner.support.dtype_limits import OpCall
from planner.support.op_names import from_dispatcher, overload_of

_TEXT_TYPES = ("str", "Optional[str]", "List[str]")


@dataclass(frozen=True, slots=True)
class NotTraced:
    """Why the leaves of an operator could not be found."""

    reason: str


def leaf_calls(
    node: OpNode,
    device: str,
    is_leaf: Callable[[str], bool],
    decompositions: Mapping[Any, Callable[..., Any]],
) -> tuple[OpCall, ...] | NotTraced:
    """The distinct calls, in order, in which `node`'s operator ends on `device`.

    An operator is not followed further where `is_leaf` holds, or where neither `decompositions`
    (by overload) nor torch's own composite takes it apart. The operator runs in inference mode on
    fake tensors with the shapes, strides and dtypes of the node's inputs, so that torch's own code
    chooses the path; nothing is computed. Composites run as they do in eager mode; where that asks
    for a tensor's value, as torch takes them apart for tracing.
    """
    overload = overload_of(node.op)
    if overload is None:
        return NotTraced(f"this process has no operator {node.op}")

    def as_traced(func: Any, args: Any, kwargs: Any) -> Any:
        if func in decompositions:
            return decompositions[func](*args, **kwargs)
        return func.decompose(*args, **kwargs)

    if decompositions:
        return _recorded(overload, node, device, _Path(is_leaf, as_traced))
    eager = _recorded(overload, node, device, _Path(is_leaf, _as_in_eager))
    if not isinstance(eager, NotTraced):
        return eager
    return _recorded(overload, node, device, _Path(is_leaf, as_traced))


@dataclass(frozen=True, slots=True)
class _Path:
    """Where following an operator ends, and how it is taken apart before (`NotImplemented`: it is
    not).
    """

    is_leaf: Callable[[str], bool]
    take_apart: Callable[[Any, Any, Any], Any]


def _as_in_eager(func: Any, args: Any, kwargs: Any) -> Any:
    import torch

    if not is_composite_implicit(from_dispatcher(func.name())):
        return NotImplemented
    return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def _recorded(
    overload: Any, node: OpNode, device: str, path: _Path
) -> tuple[OpCall, ...] | NotTraced:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    recorder = _recorder(path)
    fake: Any = FakeTensorMode(shape_env=ShapeEnv())
    try:
        with torch.inference_mode(), fake:
            args, kwargs = _arguments(overload, node, device)
            with recorder:
                overload(*args, **kwargs)
    except Exception as error:  # any failure of foreign code means: not known, and why
        return NotTraced(_why(error))
    return tuple(dict.fromkeys(recorder.calls))


def _why(error: Exception) -> str:
    if "DataDependent" in type(error).__name__:
        return "which operators it runs depends on the values in its tensors"
    first_line = str(error).strip().partition("\n")[0]
    return f"running it without data failed: {type(error).__name__}: {first_line}"


def _recorder(path: _Path) -> Any:
    """A dispatch mode whose `calls` lists the leaf calls made under it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorder(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.calls: list[OpCall] = []

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            del types
            kwargs = kwargs or {}
            if func.namespace == "prim":
                return func(*args, **kwargs)
            op = from_dispatcher(func.name())
            if not path.is_leaf(op):
                with self:
                    result = path.take_apart(func, args, kwargs)
                if result is not NotImplemented:
                    return result
            position = len(self.calls)
            self.calls.append(OpCall(op, _dtypes((args, kwargs))))
            result = func(*args, **kwargs)
            self.calls[position] = OpCall(op, _dtypes((args, kwargs)), _dtypes(result))
            return result

    return Recorder()


def _dtypes(values: Any) -> tuple[str, ...]:
    import torch
    from torch.utils._pytree import tree_leaves

    return tuple(
        str(value.dtype).removeprefix("torch.")
        for value in tree_leaves(values)
        if isinstance(value, torch.Tensor)
    )


def _arguments(overload: Any, node: OpNode, device: str) -> tuple[list[Any], dict[str, Any]]:
    """The node's arguments as the operator takes them: tensors on `device`, dtypes as objects."""
    types = {argument.name: str(argument.real_type) for argument in overload._schema.arguments}
    in_order = list(types.values())
    args = [
        _value(value, in_order[index] if index < len(in_order) else "", device)
        for index, value in enumerate(node.args)
    ]
    kwargs = {
        name: _value(value, types.get(name, ""), device) for name, value in node.kwargs.items()
    }
    return args, kwargs


def _value(value: object, kind: str, device: str) -> Any:
    import torch

    if isinstance(value, TensorMeta):
        dtype = getattr(torch, value.dtype)
        return torch.empty_strided(value.shape, value.stride, dtype=dtype, device=device)
    if isinstance(value, tuple | list):
        return [_value(item, kind, device) for item in value]
    if not isinstance(value, str) or kind in _TEXT_TYPES:
        return value
    if "Device" in kind:
        return torch.device(device)
    return getattr(torch, value.removeprefix("torch."))
