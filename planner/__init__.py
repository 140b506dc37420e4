"""fuseplan: operator coverage and fusion planning for PyTorch models. The public API, loaded on
first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.artifact.load import load
    from planner.pipeline import audit, capture, fuse

__all__ = ["audit", "capture", "fuse", "load"]


def __getattr__(name: str) -> Any:
    if name == "load":
        from planner.artifact.load import load

        return load
    if name in __all__:
        from planner import pipeline

        return getattr(pipeline, name)
    raise AttributeError(f"module 'planner' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
