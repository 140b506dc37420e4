"""Copies before attention go where nothing but the layout asks for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as attention

from planner.passes.attention_layout import read_attention_as_it_lies
from planner.passes.normalize import NORMALIZE
from planner.passes.runner import run_passes

X = torch.randn(2, 7, 32)


def _heads(x: Tensor) -> Tensor:
    return x.view(2, 7, 4, 8).transpose(1, 2)


def _notes(export: Any, function: Any) -> tuple[str, ...]:
    """The pass's notes; the program still equals eager."""
    exported = export(function, X)
    run_passes(exported.program, NORMALIZE)
    (record,) = run_passes(
        exported.program, [("read_attention_as_it_lies", read_attention_as_it_lies)]
    )
    exported.program.validate()
    with torch.no_grad():
        out, wanted = exported.program.module()(X), exported.module(X)
    torch.testing.assert_close(out, wanted)
    return record.notes


def test_three_copies_go(export: Any) -> None:
    def form(x: Tensor) -> Tensor:
        return attention(*(_heads(x * n).contiguous() for n in (1.0, 2.0, 3.0)))

    assert _notes(export, form) == ("3 copies before attention left out",)


def test_one_copy_for_all_three_goes(export: Any) -> None:
    def form(x: Tensor) -> Tensor:
        copied = _heads(x).contiguous()
        return attention(copied, copied, copied)

    assert _notes(export, form) == ("1 copy before attention left out",)


@pytest.mark.parametrize(
    "form",
    [
        lambda x: (lambda k: (attention(k, k, k), k))(_heads(x).contiguous()),
        lambda x: (lambda k: attention(k, k, k) + k)(_heads(x).contiguous()),
        lambda x: (lambda k: attention(k, k, k))(x.view(2, 7, 8, 4).permute(0, 3, 1, 2).clone()),
        lambda x: (lambda k: attention(k, k, k))(
            x.view(2, 4, 8, 7).mT.contiguous(memory_format=torch.contiguous_format)
        ),
        lambda x: (lambda k: attention(k, k, k))(
            x[:, :1].view(2, 1, 4, 8).expand(2, 7, 4, 8).clone()
        ),
    ],
    ids=["returned", "read", "order", "columns", "expanded"],
)
def test_other_copies_stay(export: Any, form: Any) -> None:
    assert _notes(export, form) == ()
