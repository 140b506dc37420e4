"""Activations as models write them out, one function a formula."""

from __future__ import annotations

import math
from typing import Any

import torch

_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)


def gelu_erf(x: Any) -> Any:
    """GELU itself (Hendrycks and Gimpel 2016): x times the normal distribution's function."""
    return 0.5 * x * (1.0 + torch.erf(x * math.sqrt(0.5)))


def gelu_tanh(x: Any) -> Any:
    """The tanh approximation, as GPT-2 has it."""
    return 0.5 * x * (1.0 + torch.tanh(_SQRT_2_OVER_PI * (x + 0.044715 * x**3)))


def gelu_tanh_factored(x: Any) -> Any:
    """The same with x outside the parenthesis, as Bloom has it."""
    return 0.5 * x * (1.0 + torch.tanh(_SQRT_2_OVER_PI * x * (1.0 + 0.044715 * x * x)))


def quick_gelu(x: Any) -> Any:
    """The sigmoid approximation, as CLIP has it."""
    return x * torch.sigmoid(1.702 * x)


def silu(x: Any) -> Any:
    """SiLU (swish)."""
    return x * torch.sigmoid(x)
