"""Tensors of more than 2**31 elements: every index is a 64-bit one. About 30 GB of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm

from fusion_kernels.tolerances import check

pytestmark = pytest.mark.gpu

CHUNK = 1 << 27
LEAST_FREE_BYTES = 60 << 30
# Rows that 16 does not divide, and as many of them that the last lie past 2**31 elements.
COLS, ROWS = 2049, (1 << 20) + 1
SHORT_COLS, MANY_ROWS = 3, (1 << 30) + 3


def _gelu_residual(x: Tensor, residual: Tensor) -> Tensor:
    return gelu(x) + residual


def _bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    return gelu(x + bias)


def _add_layer_norm(x: Tensor, weight: Tensor) -> Tensor:
    return layer_norm(x + x, (x.shape[-1],), weight)


def _softmax(x: Tensor) -> Tensor:
    return torch.softmax(x * 0.5, -1)


CASES: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "flat pointwise": (_gelu_residual, ((ROWS * COLS,), (ROWS * COLS,))),
    "pointwise with a vector": (_bias_gelu, ((ROWS, COLS), (COLS,))),
    "rows": (_add_layer_norm, ((ROWS, COLS), (COLS,))),
    "short rows": (_softmax, ((MANY_ROWS, SHORT_COLS),)),
    "long rows": (_softmax, ((16385, 131073),)),
}


@pytest.fixture(autouse=True)
def room() -> Iterator[None]:
    """All of the memory that this process may hold, before and after."""
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    assert free >= LEAST_FREE_BYTES, f"{free >> 30} GB are free, {LEAST_FREE_BYTES >> 30} needed"
    yield
    torch.cuda.empty_cache()


def _drawn(shape: tuple[int, ...]) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(len(shape))
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_(generator=generator)


def _pieces(tensors: tuple[Tensor, ...]) -> Iterator[tuple[slice, list[Tensor]]]:
    """The first dimension of the first tensor in pieces; vectors are in each whole."""
    rows = tensors[0].shape[0]
    step = max(1, CHUNK // (tensors[0].numel() // rows))
    for start in range(0, rows, step):
        part = slice(start, start + step)
        yield part, [t[part] if t.shape[0] == rows else t for t in tensors]


@pytest.mark.parametrize("name", CASES)
def test_more_than_two_to_the_31_elements(name: str, kernel_of: Any) -> None:
    function, shapes = CASES[name]
    like = [torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in shapes]
    tensors = tuple(map(_drawn, shapes))
    assert tensors[0].numel() > 1 << 31
    (out,) = kernel_of(function, *like)(*tensors)
    for part, given in _pieces(tensors):
        exact = function(*(tensor.double() for tensor in given))
        broken = [result for result in check(out[part], exact) if not result.passed]
        assert not broken, (part, broken)


def test_a_transposed_view_of_as_many_elements(kernel_of: Any) -> None:
    """Read along its columns, whose strides times their index pass 2**31."""
    whole = _drawn((COLS, ROWS))
    x = whole.t()
    like = torch.empty((COLS, ROWS), dtype=torch.bfloat16, device="meta").t()
    (out,) = kernel_of(lambda x: torch.relu(x) * 2 - x, like)(x)
    assert out.shape == x.shape
    step = CHUNK // COLS
    for start in range(0, ROWS, step):
        exact = x[start : start + step].double()
        exact = exact.relu() * 2 - exact
        broken = [r for r in check(out[start : start + step], exact) if not r.passed]
        assert not broken, (start, broken)
