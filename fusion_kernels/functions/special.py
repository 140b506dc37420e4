"""Special functions."""

from __future__ import annotations

from fusion_kernels.functions.function import Function

SPECIAL_FUNCTIONS: tuple[Function, ...] = ()
