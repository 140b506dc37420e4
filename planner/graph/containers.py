"""Teaches torch's pytree the classes that hold tensors in a call's inputs and outputs, as
torch.export asks for.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch.utils import _pytree as pytree

from planner.graph.caches import register_dynamic_cache
from planner.graph.errors import CaptureFailed
from planner.graph.explain import first_line


def register_containers(value: Any) -> None:
    """Register every class in a nest of values that pytree does not know yet.

    Plain dataclasses by torch's own call, transformers' caches by transformers' own. What is no
    container stays a leaf. Raises `CaptureFailed` for a container that its own class's flattening
    refuses.
    """
    if pytree.tree_is_leaf(value) and not register_class(type(value)):
        return
    for part in _parts(value):
        register_containers(part)


def _parts(container: Any) -> list[Any]:
    """What one container holds, containers whole."""
    try:
        return pytree.tree_leaves(container, is_leaf=lambda part: part is not container)
    except Exception as error:
        name = type(container).__name__
        raise CaptureFailed(
            f"torch.export cannot take apart the {name} among the model's inputs or outputs: "
            f"{first_line(error)}. Where it is a cache, let the model do without: "
            "model.config.use_cache = False (on the command line --set use_cache=false)."
        ) from error


def register_class(cls: Any) -> bool:
    """Whether values of `cls` are containers, known to pytree and to its serializer from now on.

    A class that registers itself when it is imported (transformers' outputs do) is left as it is.
    """
    if pytree.is_namedtuple_class(cls):  # known as such, but not to the serializer
        if cls not in pytree.SUPPORTED_SERIALIZED_TYPES:
            pytree._register_namedtuple(cls, serialized_type_name=_serialized_name(cls))
        return True
    if cls in pytree.SUPPORTED_NODES:
        return True
    if cls.__name__ == "DynamicCache":
        register_dynamic_cache(cls)
        return True
    if cls.__name__ == "EncoderDecoderCache":
        _register_pair_of_caches(cls)
        return True
    if isinstance(cls, type) and dataclasses.is_dataclass(cls):
        torch.export.register_dataclass(cls, serialized_type_name=_serialized_name(cls))
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
        serialized_type_name=_serialized_name(cls),
        flatten_with_keys_fn=flatten_with_keys,
    )


def _serialized_name(cls: Any) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
