"""Lookups within a region: embeddings and gathers with what follows them, and where they stop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import embedding, layer_norm

from fusion_kernels.emit.config import KernelConfig
from fusion_kernels.emit.source import Provenance, emit
from fusion_kernels.library import define
from fusion_kernels.load import interpreted
from planner.fusion.plan import write_kernel
from planner.verify import verify_region


def _draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _positions(bound: int, *shape: int) -> Tensor:
    return torch.randint(0, bound, shape, generator=torch.Generator().manual_seed(bound))


def _bert(words: Tensor, places: Tensor, w: Tensor, b: Tensor, ids: Tensor, at: Tensor) -> Tensor:
    return layer_norm(embedding(ids, words) + embedding(at, places), (words.shape[1],), w, b)


def _relative(scores: Tensor, content: Tensor, at: Tensor) -> Tensor:
    return torch.softmax(scores * 0.5 + torch.gather(content, -1, at), -1)


FORMS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "embeddings and norm": (
        _bert,
        (
            _draw(31, 24),
            _draw(16, 24),
            _draw(24),
            _draw(24),
            _positions(31, 3, 7),
            _positions(16, 1, 7),
        ),
    ),
    "relative positions": (
        _relative,
        (_draw(2, 5, 7), _draw(2, 5, 11), _positions(11, 2, 5, 7)),
    ),
    "gathered rows": (
        lambda x, y, at: torch.gather(x, 0, at) * y,
        (_draw(9, 4), _draw(5, 4), _positions(9, 5, 4)),
    ),
    "selected columns": (
        lambda x, at: torch.index_select(x, 1, at).tanh() * 2,
        (_draw(4, 9, 3), _positions(9, 5)),
    ),
    "one table for all": (
        lambda x, t, at: x + embedding(at, t).permute(2, 0, 1),
        (_draw(2, 4, 6, 6), _draw(32, 4), _positions(32, 6, 6)),
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_lookup_joins_and_is_right(name: str, grow: Any, rewritten: Any, tmp_path: Path) -> None:
    form, tensors = FORMS[name]
    grown = grow(form, *tensors)
    (plan,) = grown.plans
    assert plan.lowered.tables
    source = emit(plan.lowered.region, Provenance("this test"))
    operator = define(source, write_kernel(source, tmp_path))
    failed = [r for r in verify_region(plan.lowered, operator, "cpu", seed=5) if not r.passed]
    assert not failed
    torch.testing.assert_close(rewritten(grown)(*tensors), form(*tensors), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_tall_and_flat_programs_look_up_the_same(grow: Any, rows: int, dtype: Any) -> None:
    form, tensors = FORMS["embeddings and norm"]
    tensors = (*tensors[:4], tensors[4].to(dtype), tensors[5])
    (plan,) = grow(form, *tensors).plans
    source = emit(plan.lowered.region, Provenance("this test"), KernelConfig(32, 4, rows))
    names = ("words_1", "places_1", "w_1", "b_1", "ids_1", "at_1")
    by_name = dict(zip(names, tensors, strict=True))
    given = [by_name[node.name] for node in plan.lowered.inputs]
    out = interpreted(source.text, source.name)(*plan.lowered.arguments(given))
    torch.testing.assert_close(out, form(*tensors), rtol=1e-5, atol=1e-5)


def test_what_is_computed_in_the_region_is_not_looked_up_in_it(grow: Any, rewritten: Any) -> None:
    def form(table: Tensor, at: Tensor) -> Tensor:
        return embedding(at + 1, table * 2 + 1).tanh() * 3

    tensors = (_draw(9, 4), _positions(8, 5))
    grown = grow(form, *tensors)
    assert any("computed in the region" in m.reason for m in grown.rejected)
    torch.testing.assert_close(rewritten(grown)(*tensors), form(*tensors))


def test_a_lookup_at_one_position_without_dimensions_joins_nothing(grow: Any) -> None:
    grown = grow(lambda x, i: x.index_select(0, i) * 2 + 1, torch.randn(4, 5), torch.tensor(2))
    assert grown.regions == [["mul", "add"]]


def test_a_lone_lookup_is_left_to_eager(grow: Any) -> None:
    grown = grow(lambda t, at: embedding(at, t), _draw(9, 4), _positions(9, 5))
    assert grown.regions == []
