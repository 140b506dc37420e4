"""A module's parameters and buffers as rows, and a module tree made of such rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor, nn

from planner.artifact.manifest import Weight


def weights_of(module: nn.Module, read: Collection[str]) -> tuple[Weight, ...]:
    """A row a name in the order of the state_dict, every name of a tied one included. A buffer
    that is not persistent is listed when it is in `read`, the names that the program reads.
    """
    rows: list[Weight] = []
    first: dict[int, str] = {}
    for path, part in module.named_modules(remove_duplicate=False):
        own = [*_named(part._parameters, True), *_named(part._buffers, False)]
        for key, tensor, parameter in own:
            name = f"{path}.{key}" if path else key
            persistent = key not in part._non_persistent_buffers_set
            if persistent or name in read:
                same_as = first.get(id(tensor))
                first.setdefault(id(tensor), name)
                rows.append(Weight(name, parameter, persistent, same_as))
    return tuple(rows)


def tensor_at(module: nn.Module, name: str) -> Tensor:
    """The parameter or buffer of this full name."""
    path, _, key = name.rpartition(".")
    owner = module.get_submodule(path)
    parameter = owner._parameters.get(key)
    found = owner._buffers[key] if parameter is None else parameter
    assert found is not None
    return found


def plant(root: nn.Module, weights: tuple[Weight, ...], values: Mapping[str, Tensor]) -> None:
    """Give `root` these weights, under plain modules where the names have dots. Tied names hold
    one tensor; parameters require no grad.
    """
    made: dict[str, Tensor] = {}
    for weight in weights:
        if weight.same_as is not None:
            tensor = made[weight.same_as]
        else:
            value = values[weight.name].detach()
            tensor = nn.Parameter(value, requires_grad=False) if weight.parameter else value
        made[weight.name] = tensor
        owner, key = _owner(root, weight.name)
        # Into the dictionaries: a name may be that of a method.
        if weight.parameter:
            assert isinstance(tensor, nn.Parameter)
            owner._parameters[key] = tensor
        else:
            owner._buffers[key] = tensor
            if not weight.persistent:
                owner._non_persistent_buffers_set.add(key)


def _named(found: Mapping[str, Any], parameter: bool) -> list[tuple[str, Tensor, bool]]:
    return [(key, value, parameter) for key, value in found.items() if value is not None]


def _owner(root: nn.Module, name: str) -> tuple[nn.Module, str]:
    *path, key = name.split(".")
    owner = root
    for part in path:
        child = owner._modules.get(part)
        if child is None:
            child = owner._modules[part] = nn.Module().eval()
        owner = child
    return owner, key
