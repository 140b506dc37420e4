"""Tiers of operators."""

from __future__ import annotations

import pytest

from planner.cost.families import packet
from planner.cost.tiers import tier_of


@pytest.mark.parametrize(
    ("op", "tier"),
    [
        ("aten.linear.default", "core"),
        ("aten.conv2d.default", "core"),
        ("aten.scaled_dot_product_attention.default", "core"),
        ("aten.layer_norm.default", "core"),
        ("aten.softmax.int", "core"),
        ("aten.relu_.default", "core"),
        ("aten.permute.default", "movement"),
        ("aten.cat.default", "movement"),
        ("aten.embedding.default", "movement"),
        ("aten._to_copy.default", "movement"),
        ("aten.constant_pad_nd.default", "movement"),
        ("aten.add.Tensor", "long_tail"),
        ("aten.sum.dim_IntList", "long_tail"),
        ("mine.op.default", "long_tail"),
    ],
)
def test_tier(op: str, tier: str) -> None:
    assert tier_of(op) == tier


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("aten.add_.Tensor", "aten.add"),
        ("aten.__and__.Tensor", "aten.__and__"),
        ("mine.op.default", "mine.op"),
        ("getitem", "getitem"),
    ],
)
def test_packet(op: str, name: str) -> None:
    assert packet(op) == name
