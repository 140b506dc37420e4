"""Slices of what a region computes: rotary embeddings of normed heads, gates cut out of one
product, and what stays apart.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from fusion_kernels.emit.source import Provenance, emit
from fusion_kernels.library import define
from planner.fusion.plan import write_kernel
from planner.verify import verify_region


def _draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _normed(x: Tensor, w: Tensor) -> Tensor:
    return w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def _qk_norm_rope(x: Tensor, w: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As Qwen3 has it: each head's queries are normed, then rotated by halves."""
    y = _normed(x, w).transpose(1, 2)
    turned = torch.cat((-y[..., 8:], y[..., :8]), -1)
    return y * cos + turned * sin


def _cut_gate(x: Tensor, bias: Tensor) -> Tensor:
    both = x + bias
    return both[..., :12] * silu(both[..., 12:])


FORMS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "norm and rotation": (_qk_norm_rope, ((2, 5, 3, 16), (16,), (5, 16), (5, 16))),
    "gate of one product": (_cut_gate, ((2, 7, 24), (24,))),
    "from the end": (lambda x, y: (x * 2)[..., -5:] + y, ((3, 9), (3, 5))),
    "twice": (lambda x: (x * 2)[..., 2:][..., 1:4].tanh() + 1, ((3, 9),)),
    "of a row's norm": (
        lambda x: (x / x.norm(dim=-1, keepdim=True))[..., :9] * x[..., :9],
        ((3, 9),),
    ),
    "of the middle": (lambda x, y: (x * 2)[:, 1:4].tanh() * y, ((2, 6, 5), (2, 3, 5))),
}


@pytest.mark.parametrize("name", FORMS)
def test_one_region_holds_it_and_is_right(
    name: str, grow: Any, rewritten: Any, tmp_path: Path
) -> None:
    form, shapes = FORMS[name]
    tensors = [_draw(*shape) for shape in shapes]
    grown = grow(form, *tensors)
    assert len(grown.plans) == 1, (grown.regions, grown.rejected)
    (plan,) = grown.plans
    source = emit(plan.lowered.region, Provenance("this test"))
    operator = define(source, write_kernel(source, tmp_path))
    failed = [r for r in verify_region(plan.lowered, operator, "cpu", seed=4) if not r.passed]
    assert not failed
    torch.testing.assert_close(rewritten(grown)(*tensors), form(*tensors), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (lambda x: (x * 2)[:, ::2].tanh() + 1, "with steps"),
        (lambda x: (x * 2)[2:].tanh() + 1, "leading dimension"),
        (lambda x: torch.softmax(x * 2, -1)[:, 2:].tanh() + 1, "within a piece"),
        (lambda x: torch.cat((x * 2, x), 1)[:, 3:9].tanh() + 1, "slice of a concatenation"),
    ],
)
def test_what_is_not_cut_within_a_kernel(grow: Any, rewritten: Any, form: Any, reason: str) -> None:
    tensors = (_draw(4, 8),)
    grown = grow(form, *tensors)
    assert any(reason in m.reason for m in grown.rejected), grown.rejected
    torch.testing.assert_close(rewritten(grown)(*tensors), form(*tensors), rtol=1e-5, atol=1e-6)


def test_a_slice_that_others_read_stays_beside_the_region(grow: Any, rewritten: Any) -> None:
    def form(x: Any, w: Any) -> Any:
        y = (x * 2)[:, 1:5]
        return y @ w, y.tanh() + 1, x * 2

    tensors = (_draw(3, 8), _draw(4, 2))
    grown = grow(form, *tensors)
    for out, wanted in zip(rewritten(grown)(*tensors), form(*tensors), strict=True):
        torch.testing.assert_close(out, wanted)
