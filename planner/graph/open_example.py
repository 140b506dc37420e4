"""An example call for a capture with open sizes, and the same call at other sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import AdditionalInputs, ShapesCollection
from torch.export.dynamic_shapes import Dim, _combine_args, _DimHint, _tree_map_with_path
from torch.utils import _pytree as pytree

from planner.graph.errors import WrongInputs
from planner.graph.open_sizes import OpenSizes, Sizes, evaluated

Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class OpenExample:
    """A call to export, what to tell torch.export of its sizes, and for each of its leaves the
    open dimensions with the least size that was asked for.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dynamic_shapes: Any
    least: tuple[Mapping[int, int], ...]


def open_example(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> OpenExample:
    """The call with at least two of everything along open dimensions: what is there once is there
    twice, because torch.export takes a size of 1 for a fixed one.

    Raises `WrongInputs` where `dynamic_shapes` does not have the form of the call, or an open
    dimension is empty.
    """
    call = (tuple(args), dict(kwargs))
    spec = dynamic_shapes
    if isinstance(spec, ShapesCollection | AdditionalInputs):
        spec = spec.dynamic_shapes(module, *call)  # type: ignore[no-untyped-call]
    least = _least(module, call, spec)

    def doubled(leaf: Any) -> Any:
        for dim in least.get(id(leaf), {}):
            if leaf.shape[dim] == 1:
                leaf = torch.cat([leaf, leaf], dim)
        return leaf

    wide_args, wide_kwargs = pytree.tree_map(doubled, call)
    of_leaves = tuple(least.get(id(leaf), {}) for leaf in pytree.tree_leaves(call))
    return OpenExample(wide_args, wide_kwargs, spec, of_leaves)


def resized(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], open_sizes: OpenSizes, sizes: Sizes
) -> Call:
    """The call at other sizes: its own elements, again from the start where they do not suffice.
    Each tensor keeps the order of its strides.
    """
    leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
    changed = []
    for leaf, item in zip(leaves, open_sizes.inputs, strict=True):
        if item is None:
            changed.append(leaf)
            continue
        wanted = [evaluated(size, sizes) for size in item.shape]
        assert None not in wanted
        changed.append(wanted[0] if item.is_number else _repeated(leaf, wanted))
    resized_args, resized_kwargs = pytree.tree_unflatten(changed, structure)
    return resized_args, resized_kwargs


def _repeated(leaf: Tensor, wanted: list[int | None]) -> Tensor:
    if list(leaf.shape) == wanted:
        return leaf
    made = leaf
    for dim, size in enumerate(wanted):
        assert size is not None
        if size != leaf.shape[dim]:
            again = torch.arange(size, device=leaf.device) % leaf.shape[dim]
            made = made.index_select(dim, again)
    strides = leaf.stride()
    order = sorted(range(leaf.dim()), key=lambda dim: -strides[dim])
    back = [order.index(dim) for dim in range(leaf.dim())]
    return made.permute(order).contiguous().permute(back)


def _least(module: nn.Module, call: Call, spec: Any) -> dict[int, dict[int, int]]:
    """By the identity of a leaf its open dimensions, with the least size asked for."""
    found: dict[int, dict[int, int]] = {}

    def look(path: Any, leaf: Any, shape: Any) -> None:
        if not isinstance(leaf, Tensor) or shape is None:
            return
        dims = shape.items() if isinstance(shape, Mapping) else enumerate(shape)
        for dim, wanted in dims:
            least = _least_of(wanted)
            if least is None:
                continue
            if leaf.shape[dim] == 0:
                raise WrongInputs(
                    f"dimension {dim} of the example input {pytree.keystr(path)} is to stay open "
                    "and has no elements. Give an example with one or more."
                )
            found.setdefault(id(leaf), {})[dim] = least

    try:
        given = _combine_args(module, *call)
        whole = given if isinstance(spec, Mapping) else type(spec)(given.values())
        _tree_map_with_path(look, whole, spec, tree_name="inputs")
    except WrongInputs:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines()
        raise WrongInputs(
            f"dynamic_shapes does not have the form of the inputs: {lines[0] if lines else error} "
            "Name each input by its parameter, as in {'x': {0: torch.export.Dim('batch')}}."
        ) from error
    return found


def _least_of(wanted: Any) -> int | None:
    """The least size of a dimension that is to stay open, None for a fixed one."""
    if isinstance(wanted, _DimHint):
        return None if wanted.type.name == "STATIC" else max(wanted.min or 0, 0)
    if isinstance(wanted, Dim):
        return max(int(getattr(wanted, "min", 0)), 0)
    return None
