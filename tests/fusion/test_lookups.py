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
    "indexed rows": (
        lambda x, y, at: x[at] * y + 1,
        (_draw(9, 4), _draw(5, 4), _positions(9, 5)),
    ),
    "indexed columns": (
        lambda x, at: x[:, at].tanh() * 2,
        (_draw(4, 9, 3), _positions(9, 5, 2)),
    ),
    "an indexed table and a norm": (
        lambda x, t, at: layer_norm(x + t[at], (24,)),
        (_draw(3, 7, 24), _draw(31, 24), _positions(31, 3, 7)),
    ),
    "a transposed table": (
        lambda x, t, at: x + t.T[at].exp(),
        (_draw(7, 5), _draw(5, 31), _positions(31, 7)),
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


INDEXED: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "rows": (lambda x, at: x[at] * 2 + 1, (_draw(9, 4), torch.tensor([-1, 8, -9, 0, 3]))),
    "columns": (
        lambda x, at: torch.softmax(x[:, at] * 2, -1),
        (_draw(6, 257), torch.arange(-257, 257, 2)),
    ),
    "in 32 bits": (lambda x, at: x[at].exp() + 1, (_draw(9, 4), torch.tensor([-1, 8]).int())),
    "at several indices": (
        lambda x, at: x[at, at] * 2 + 1,
        (_draw(9, 9), torch.tensor([-1, 8, 3])),
    ),
    "at a position": (
        lambda x, at: torch.ops.aten.index.Tensor(x, [at]) * 2 + 1,
        (_draw(9, 4), torch.tensor(-2)),
    ),
    "at none": (lambda x, at: x[at] * 2 + 1, (_draw(9, 4), torch.zeros(0, dtype=torch.int64))),
    "strided": (lambda x, at: x[at] * 2 + 1, (_draw(9, 8)[::2, ::2], torch.tensor([-1, 0, 4]))),
    "read twice": (
        lambda x, at: (x[at].exp() + 1, x[at] @ x.T),
        (_draw(9, 4), torch.tensor([-1, 8, 2])),
    ),
}


@pytest.mark.parametrize("name", INDEXED)
def test_an_index_counts_from_the_end_as_in_eager(name: str, grow: Any, rewritten: Any) -> None:
    form, tensors = INDEXED[name]
    grown = grow(form, *tensors)
    wanted = form(*tensors)
    out = rewritten(grown)(*tensors)
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["rows", "columns", "in 32 bits", "strided"])
def test_the_kernel_of_an_index_counts_from_the_end(name: str, grow: Any) -> None:
    form, tensors = INDEXED[name]
    (plan,) = grow(form, *tensors).plans
    assert plan.lowered.tables
    source = emit(plan.lowered.region, Provenance("this test"))
    by_name = {"x_1": tensors[0], "at_1": tensors[1]}
    given = [by_name[node.name] for node in plan.lowered.inputs]
    out = interpreted(source.text, source.name)(*plan.lowered.arguments(given))
    torch.testing.assert_close(out, form(*tensors), rtol=1e-5, atol=1e-5)


def test_so_does_that_of_rows_in_several_blocks(grow: Any) -> None:
    form, tensors = INDEXED["columns"][0], (_draw(2, 257), torch.arange(-16_500, 1) % 500 - 250)
    (plan,) = grow(form, *tensors).plans
    source = emit(plan.lowered.region, Provenance("this test"))
    assert "for start in " in source.text
    by_name = {"x_1": tensors[0], "at_1": tensors[1]}
    given = [by_name[node.name] for node in plan.lowered.inputs]
    out = interpreted(source.text, source.name)(*plan.lowered.arguments(given))
    torch.testing.assert_close(out, form(*tensors), rtol=1e-5, atol=1e-5)


def test_what_lies_before_the_start_gives_nan(grow: Any) -> None:
    form, (table, _) = INDEXED["rows"]
    at = torch.tensor([-10, 9, -9])
    (plan,) = grow(form, table, at).plans
    source = emit(plan.lowered.region, Provenance("this test"))
    by_name = {"x_1": table, "at_1": at}
    given = [by_name[node.name] for node in plan.lowered.inputs]
    out = interpreted(source.text, source.name)(*plan.lowered.arguments(given))
    assert out[:2].isnan().all()
    torch.testing.assert_close(out[2], table[0] * 2 + 1)
