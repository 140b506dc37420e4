"""fuseplan: operator coverage and fusion planning for PyTorch models. The public API, loaded on
first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.pipeline import audit, capture, fuse

__all__ = ["audit", "capture", "fuse"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from planner import pipeline

        return getattr(pipeline, name)
    raise AttributeError(f"module 'planner' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
