"""The container classes of a call's inputs and outputs, by the path they are imported from."""

from __future__ import annotations

import importlib
import sys
from collections import defaultdict, namedtuple
from typing import Any

from torch.utils import _pytree as pytree

from planner.artifact.errors import ClassMissing, NotSaved
from planner.graph.containers import register_class


def class_paths(*specs: pytree.TreeSpec) -> tuple[str, ...]:
    """`module:Class` of every class in these structures that Python and torch do not bring. They
    are known to pytree's serializer afterwards.

    Raises `NotSaved` for a class that another process could not import.
    """
    found = dict.fromkeys(cls for spec in specs for cls in _classes(spec))
    return tuple(_path(cls) for cls in found)


def import_classes(paths: tuple[str, ...], name: str) -> None:
    """Import these classes and make them known to pytree; `name` is the artifact's, for messages.

    Imports modules of this environment. Raises `ClassMissing`.
    """
    for path in paths:
        module, _, attribute = path.partition(":")
        try:
            cls: Any = importlib.import_module(module)
            for part in attribute.split("."):
                cls = getattr(cls, part)
        except Exception as error:  # whatever an import of foreign code raises
            raise ClassMissing(
                f"{name}: its inputs or outputs hold {attribute} of {module}, which cannot be "
                f"imported here ({type(error).__name__}: {error}). Install the package or put the "
                "module on PYTHONPATH."
            ) from error
        if not (isinstance(cls, type) and register_class(cls)):
            raise ClassMissing(
                f"{name}: {attribute} of {module} is no container that torch's pytree knows. "
                "Register it where it is defined, with torch.utils._pytree.register_pytree_node."
            )


def _classes(spec: pytree.TreeSpec) -> list[Any]:
    kind = spec.context if spec.type is namedtuple else spec.type
    found = [kind] if isinstance(kind, type) and _needs_import(kind) else []
    if spec.type is defaultdict:
        factory = spec.context[0]
        found += [factory] if isinstance(factory, type) and _needs_import(factory) else []
    return [*found, *(cls for child in spec.children() for cls in _classes(child))]


def _needs_import(kind: type) -> bool:
    return kind.__module__.split(".")[0] not in ("builtins", "collections", "torch")


def _path(cls: type) -> str:
    found: Any = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is not cls or cls.__module__ == "__main__":
        raise NotSaved(
            f"The model's inputs or outputs hold {cls.__qualname__} of {cls.__module__}, which "
            "another process cannot import. Define it at the top of a module that can be imported."
        )
    register_class(cls)
    return f"{cls.__module__}:{cls.__qualname__}"
