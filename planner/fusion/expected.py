"""What a tensor must be for the captured program to apply to it, and words for what it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

PLAIN = (Tensor, nn.Parameter)


def is_plain(tensor: object) -> bool:
    """Whether operators see a plain tensor: a subclass of nn.Parameter is one where it does not
    take them over.
    """
    cls = type(tensor)
    if cls in PLAIN:
        return True
    inherited = ("__torch_function__", "__torch_dispatch__")
    return issubclass(cls, nn.Parameter) and all(
        getattr(cls, name) is getattr(nn.Parameter, name) for name in inherited
    )


@dataclass(frozen=True, slots=True)
class Expected:
    """The captured form of one tensor."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    stride: tuple[int, ...]

    def fits(self, tensor: Tensor) -> bool:
        return (
            tensor.shape == self.shape
            and tensor.dtype is self.dtype
            and tensor.device == self.device
            and tensor.layout is torch.strided
            and tensor.stride() == self.stride
        )


def expected(tensor: Tensor) -> Expected:
    """The form of `tensor` as it is now."""
    return Expected(tensor.shape, tensor.dtype, tensor.device, tensor.stride())


def describe(value: Any) -> str:
    """A tensor's form, an `Expected`, or any other value, in words."""
    if isinstance(value, Tensor):
        if not is_plain(value) or value.layout is not torch.strided:
            return f"a {type(value).__name__} of layout {str(value.layout).removeprefix('torch.')}"
        value = expected(value)
    if not isinstance(value, Expected):
        return repr(value)
    return (
        f"{dtype_name(value.dtype)}{list(value.shape)} on {value.device} "
        f"with strides {value.stride}"
    )


def dtype_name(dtype: torch.dtype) -> str:
    """ "float32" of torch.float32."""
    return str(dtype).removeprefix("torch.")
