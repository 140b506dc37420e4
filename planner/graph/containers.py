"""Teaches torch's pytree the classes that hold tensors in a call's inputs and outputs, as
torch.export asks for.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import torch
from torch.utils import _pytree as pytree


def register_containers(values: Any) -> None:
    """Register every class in a nest of values that pytree does not know yet.

    Plain dataclasses by torch's own call, transformers' caches by transformers' own. What is no
    container stays a leaf.
    """
    for leaf in pytree.tree_leaves(values):
        if _register(leaf):
            register_containers(leaf)  # its parts are leaves now


def _register(leaf: Any) -> bool:
    """Whether the leaf is a container, known from now on."""
    cls = type(leaf)
    if cls in pytree.SUPPORTED_NODES:  # another leaf of this class came before
        return True
    if cls.__name__ == "DynamicCache":
        executorch = importlib.import_module("transformers.integrations.executorch")
        executorch.register_dynamic_cache_export_support()
        return True
    if cls.__name__ == "EncoderDecoderCache":
        _register_pair_of_caches(cls)
        return True
    if dataclasses.is_dataclass(cls):
        torch.export.register_dataclass(cls)
        return True
    return False


def _register_pair_of_caches(cls: Any) -> None:
    """transformers' cache of an encoder-decoder model holds two others."""
    names = ("self_attention_cache", "cross_attention_cache")

    def flatten(pair: Any) -> tuple[list[Any], None]:
        return [getattr(pair, name) for name in names], None

    def flatten_with_keys(pair: Any) -> tuple[list[tuple[Any, Any]], None]:
        return [(pytree.GetAttrKey(name), getattr(pair, name)) for name in names], None

    def unflatten(caches: Any, _: Any) -> Any:
        return cls(*caches)

    pytree.register_pytree_node(
        cls,
        flatten,
        unflatten,
        serialized_type_name=f"{cls.__module__}.{cls.__name__}",
        flatten_with_keys_fn=flatten_with_keys,
    )
