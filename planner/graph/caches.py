"""transformers' DynamicCache as a container that pytree can take apart, the states of linear
attention included.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

_STATES = "states"
"""The first word of a context of ours; transformers' own begins with a list of names."""


def register_dynamic_cache(cls: Any) -> None:
    """Register the class by transformers' own call, and its caches with other layers than
    attention's by what the layers hold.

    Keys and values have no other state than their tensors. A layer of linear attention (Mamba and
    its like) has flags and sizes besides, which go into the context as plain data.
    """
    executorch = importlib.import_module("transformers.integrations.executorch")
    executorch.register_dynamic_cache_export_support()
    own = pytree.SUPPORTED_NODES[cls]

    def flatten(cache: Any) -> tuple[list[Any], Any]:
        return _flatten(cache) if _has_states(cache) else own.flatten_fn(cache)

    def flatten_with_keys(cache: Any) -> tuple[list[Any], Any]:
        if not _has_states(cache) and own.flatten_with_keys_fn is not None:
            return own.flatten_with_keys_fn(cache)
        values, context = flatten(cache)
        return [(pytree.SequenceKey(n), value) for n, value in enumerate(values)], context

    def unflatten(values: Any, context: Any) -> Any:
        if context[0] == _STATES:
            return _unflatten(cls, list(values), context[1])
        return own.unflatten_fn(values, context)

    pytree.SUPPORTED_NODES[cls] = own._replace(
        flatten_fn=flatten, unflatten_fn=unflatten, flatten_with_keys_fn=flatten_with_keys
    )


def _has_states(cache: Any) -> bool:
    return any(hasattr(layer, "conv_states") for layer in cache.layers)


def _flatten(cache: Any) -> tuple[list[Any], Any]:
    tensors: list[Tensor] = []
    layers = []
    for layer in cache.layers:
        attributes = [[name, _taken(value, tensors)] for name, value in vars(layer).items()]
        layers.append([type(layer).__name__, attributes])
    return tensors, [_STATES, layers]


def _unflatten(cls: Any, tensors: list[Any], layers: Any) -> Any:
    """Layer classes are looked up beside the cache's, whatever a file says."""
    made = []
    for name, attributes in layers:
        kind: Any = getattr(sys.modules[cls.__module__], name)
        layer = kind.__new__(kind)
        for attribute, value in attributes:
            setattr(layer, attribute, _put_back(value, tensors))
        made.append(layer)
    cache = cls()
    cache.layers, cache.layer_class_to_replicate = made, None
    return cache


def _taken(value: Any, tensors: list[Tensor]) -> list[Any]:
    """A layer's attribute as plain data that JSON keeps as it is, its tensors apart. Raises
    RuntimeError for what has no such form.
    """
    if isinstance(value, Tensor):
        tensors.append(value)
        return ["tensor", len(tensors) - 1]
    if isinstance(value, dict):
        return ["dict", [[key, _taken(item, tensors)] for key, item in value.items()]]
    if isinstance(value, torch.dtype | torch.device):
        return [type(value).__name__, str(value).removeprefix("torch.")]
    if value is None or type(value) in (bool, int, float, str):
        return ["plain", value]
    raise RuntimeError(f"a layer of the cache holds a {type(value).__name__}")


def _put_back(data: Any, tensors: list[Any]) -> Any:
    kind, held = data
    if kind == "tensor":
        return tensors[held]
    if kind == "dict":
        return {key: _put_back(item, tensors) for key, item in held}
    if kind == "dtype":
        return getattr(torch, held)
    return torch.device(held) if kind == "device" else held
