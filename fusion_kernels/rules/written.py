"""Activations and norms as models write them out, one function a formula."""

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


def rms_normed(x: Any, eps: float) -> Any:
    """x / sqrt(mean(x^2) + eps) over the last dimension (Zhang and Sennrich 2019)."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def rms_normed_by_power(x: Any, eps: float) -> Any:
    """The same, as Gemma 3n has it."""
    return x * (x.pow(2).mean(-1, keepdim=True) + eps).pow(-0.5)


def rms_normed_by_root(x: Any, eps: float) -> Any:
    """The same with a square root and a division."""
    return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + eps)
