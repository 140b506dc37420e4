"""What outputs share with one another and with the caller's tensors stays, whatever a kernel takes
of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import alpha_dropout, dropout, dropout2d, gelu

SAME: dict[str, Callable[[Tensor], Tensor]] = {
    "detach": lambda y: y.detach(),
    "alias": lambda y: torch.ops.aten.alias(y),
    "positive": lambda y: +y,
    "real": torch.real,
    "conj": torch.conj,
    "type_as": lambda y: y.type_as(y),
    "to": lambda y: y.to(y.dtype),
    "contiguous": lambda y: y.contiguous(),
    "dropout": lambda y: dropout(y, 0.5, training=False),
    "dropout in place": lambda y: dropout(y, 0.5, training=False, inplace=True),
    "alpha dropout": lambda y: alpha_dropout(y, 0.5, training=False),
    "dropout of channels": lambda y: dropout2d(y[None, None], 0.5, training=False)[0, 0],
    "view": lambda y: y.view(-1),
    "transpose": lambda y: y.t(),
    "slice": lambda y: y[1:, ::2],
    "squeeze": lambda y: y.unsqueeze(0).squeeze(),
    "expand": lambda y: y.expand(3, 4, 8),
    "clone": lambda y: y.clone(),
    "reshape that copies": lambda y: y.t().reshape(-1),
}


class Returns(nn.Module):
    """A value, the same by another name, and something computed from that."""

    def __init__(self, name: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.name = name
        self.register_buffer("held", torch.randn(4, 8))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = gelu(x) * 2
        other = self.name(y)
        return y, other, other * 3, self.name(x), self.name(self.held)


@pytest.mark.parametrize("name", SAME)
def test_what_shares_memory_in_eager_shares_it_when_fused(name: str, fuse_all: Any) -> None:
    model, x = Returns(SAME[name]).eval(), torch.randn(4, 8)
    fused = fuse_all(model, (x,)).module
    assert fused.fused
    with torch.no_grad():
        wanted, found = model(x), fused(x)
    assert _shared((*found, x)) == _shared((*wanted, x))
    assert [out.stride() for out in found] == [out.stride() for out in wanted]
    for out, exact in zip(found, wanted, strict=True):
        torch.testing.assert_close(out, exact)
    assert fused.fallbacks == 0


def _shared(tensors: Sequence[Tensor]) -> list[list[tuple[bool, bool]]]:
    """For each pair whether they share storage, and whether they are one object."""
    places = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [
        [(mine == place, tensor is other) for place, other in zip(places, tensors, strict=True)]
        for mine, tensor in zip(places, tensors, strict=True)
    ]
