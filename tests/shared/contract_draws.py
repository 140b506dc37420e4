"""Draws and results that tests of the numerics contract share."""

from __future__ import annotations

import torch


def normal(*shape, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(shape, generator=generator, dtype=torch.float64)


def by_measure(results):
    return {result.measure: result for result in results}


def failures(results):
    return {result.measure for result in results if not result.passed}
