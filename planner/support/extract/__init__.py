"""The extractors, listed in one tuple: each makes one backend's operator table from an installed
package.
"""

from __future__ import annotations

from planner.support.extract.interface import Extractor
from planner.support.extract.onnx_registry import ONNX
from planner.support.extract.torch_live import CPU
from planner.support.extract.torch_yaml import CUDA

__all__ = ["EXTRACTORS", "Extractor", "extractor_names", "find_extractor"]

EXTRACTORS: tuple[Extractor, ...] = (CPU, CUDA, ONNX)


def extractor_names() -> tuple[str, ...]:
    return tuple(extractor.name for extractor in EXTRACTORS)


def find_extractor(name: str) -> Extractor | None:
    """The extractor of that backend, or None."""
    return next((extractor for extractor in EXTRACTORS if extractor.name == name), None)
