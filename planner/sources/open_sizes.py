"""Which sizes `--dynamic` leaves open, in the form that torch.export takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.export import Dim
from torch.export.dynamic_shapes import _combine_args

from planner.sources.options import BadOption, OpenSize

_SHORT = {"batch": 0, "seq": 1}
"""Names for a dimension that several inputs have."""


def dynamic_shapes_of(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    wanted: Sequence[OpenSize],
) -> dict[str, Any] | None:
    """`dynamic_shapes` of a call by its parameters, None where nothing is wanted.

    `batch` is dimension 0 of every tensor that is as large there as the first one, `seq` so for
    dimension 1. Sizes that the model needs equal are tied by the export. Raises `BadOption` for a
    name that no tensor has, a dimension that the tensor does not have, or a range that the example
    is outside of.
    """
    if not wanted:
        return None
    given = _combine_args(module, args, dict(kwargs))
    shapes: dict[str, Any] = {name: _spec(value) for name, value in given.items()}
    for size in wanted:
        hint: Any = Dim.DYNAMIC(min=size.least, max=size.most)
        if size.dim is not None:
            spec = _tensor_spec(given, shapes, size)
            _require_within(size, given[size.name].shape[size.dim])
            spec[size.dim] = hint
            continue
        dim = _SHORT[size.name]
        places = _alike(given, shapes, dim)
        if not places:
            raise BadOption(f"--dynamic {size.name}: no input has a dimension {dim}.")
        _require_within(size, places[0][0].shape[dim])
        for _, spec in places:
            spec[dim] = hint
    return shapes


def _spec(value: Any) -> Any:
    """Of the value's form: an empty entry for each tensor, to be filled."""
    if isinstance(value, Tensor):
        return {}
    if isinstance(value, list | tuple):
        return type(value)([_spec(item) for item in value])
    if isinstance(value, dict):
        return {key: _spec(item) for key, item in value.items()}
    return None


def _tensor_spec(given: Mapping[str, Any], shapes: dict[str, Any], size: OpenSize) -> Any:
    value = given.get(size.name)
    if not isinstance(value, Tensor):
        names = ", ".join(name for name, item in given.items() if isinstance(item, Tensor))
        raise BadOption(f"--dynamic {size}: '{size.name}' is no tensor input; there are {names}.")
    assert size.dim is not None
    if size.dim >= value.dim():
        raise BadOption(f"--dynamic {size}: '{size.name}' has {value.dim()} dimensions, from 0 on.")
    return shapes[size.name]


def _alike(given: Any, shapes: Any, dim: int) -> list[tuple[Tensor, Any]]:
    """The tensors that are as large along `dim` as the first that has it, and their entries."""
    pairs = [(tensor, spec) for tensor, spec in _pairs(given, shapes) if tensor.dim() > dim]
    return [pair for pair in pairs if pair[0].shape[dim] == pairs[0][0].shape[dim]]


def _require_within(size: OpenSize, own: int) -> None:
    """The example must lie in the range; what is there once is captured twice."""
    captured = max(own, 2) if size.most != 1 else own
    if not size.least <= captured <= (captured if size.most is None else size.most):
        ends = f"{size.least}:{'' if size.most is None else size.most}"
        raise BadOption(
            f"--dynamic {size}={ends}: the example has {own} there. Give a range that holds it, "
            "or an example within the range (--batch, --seq, --input)."
        )


def _pairs(value: Any, spec: Any) -> list[tuple[Tensor, Any]]:
    if isinstance(value, Tensor):
        return [(value, spec)]
    if isinstance(value, Mapping):
        return [pair for key in value for pair in _pairs(value[key], spec and spec.get(key))]
    if isinstance(value, list | tuple):
        return [pair for item in zip(value, spec, strict=True) for pair in _pairs(*item)]
    return []
