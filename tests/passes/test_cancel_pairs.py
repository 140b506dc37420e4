"""Pairs that undo one another go; casts that lose something, copies and strides stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim

from planner.passes.cancel_pairs import cancel_pairs, keeps_every_value
from planner.passes.noops import drop_asserts

X = torch.randn(4, 6)
CUBE = torch.randn(2, 3, 257)
EXP = "exp.default"


@pytest.mark.parametrize(
    ("function", "x", "left"),
    [
        (lambda x: x.double().float().exp(), X, [EXP]),
        (lambda x: x.float().to(torch.bfloat16).exp(), X.bfloat16(), [EXP]),
        (lambda x: x.float().half().float().half().exp(), X.half(), [EXP]),
        (lambda x: (x.double() + 1, x.double().float().exp()), X, 3),
        (lambda x: x.t().t().exp(), X, [EXP]),
        (lambda x: x.transpose(0, 1).transpose(-1, 0).exp(), X, [EXP]),
        (lambda x: x.permute(2, 0, 1).permute(1, 2, 0).exp(), CUBE, [EXP]),
        (lambda x: x.permute(2, 0, 1).transpose(0, 2).exp(), CUBE, ["permute.default", EXP]),
        (lambda x: x.t().t().t().t().exp(), X, [EXP]),
        (lambda x: x.view(24).view(4, 6).exp(), X, [EXP]),
        (lambda x: x.view(24).view(2, 12).exp(), X, ["view.default", EXP]),
        (lambda x: x[None].squeeze(0).exp(), X, [EXP]),
        (lambda x: x.unflatten(1, (2, 3)).flatten(1).exp(), X, [EXP]),
        (lambda x: x[None].view(2, 12).exp(), X, ["view.default", EXP]),
    ],
    ids=[
        "widened", "bfloat16", "chain_of_casts", "also_read_wide", "t_t", "transposes", "permutes",
        "composed", "four", "back", "composed_views", "unsqueezed", "unflattened", "mixed",
    ],
)  # fmt: skip
def test_pairs_go(export: Any, function: Callable[[Tensor], Any], x: Tensor, left: Any) -> None:
    exported = export(function, x)
    exported.apply(drop_asserts, cancel_pairs)
    ops = exported.ops()
    assert len(ops) == left if isinstance(left, int) else ops == left
    exported.require_equal(torch.randn(x.shape).to(x.dtype))


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda x: x.half().float().exp(), X),
        (lambda x: x.bfloat16().float().exp(), X),
        (lambda x: x.half().to(torch.bfloat16).exp(), X.bfloat16()),
        (lambda x: x.long().float().exp(), X),
        (lambda x: x.float().int().exp(), torch.tensor([2**24 + 1], dtype=torch.int32)),
        (lambda x: x.t().permute(0, 1)[None].permute(1, 2, 0).exp(), X),
        (lambda x: x.t().contiguous().t().exp(), X),
        (lambda x: x.t().reshape(24).view(4, 6).exp(), X),
        (lambda x: x.view(24).t().view(2, 12).t().exp(), X),
    ],
    ids=[
        "half", "bfloat16", "two_halves", "to_integers", "large_integers", "not_adjacent",
        "copied_between", "reordered_between", "other_order",
    ],
)  # fmt: skip
def test_what_loses_or_reorders_stays(
    export: Any, function: Callable[[Tensor], Any], x: Tensor
) -> None:
    exported = export(function, x)
    exported.apply(drop_asserts)
    loses = [op for op in exported.ops() if op in ("_to_copy.default", "clone.default")]
    exported.apply(cancel_pairs)
    assert [op for op in exported.ops() if op in ("_to_copy.default", "clone.default")] == loses
    assert exported.ops() != [EXP]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.double().float(),
        lambda x: _and(x.exp(), lambda y: (y, y.double().float())),
        lambda x: _and(x.exp(), lambda y: (y.view(-1), y.double().float().t())),
    ],
    ids=["of_an_input", "beside_its_source", "views"],
)
def test_a_cast_and_back_that_keeps_results_apart_stays(export: Any, function: Any) -> None:
    exported = export(function, X)
    exported.apply(drop_asserts, cancel_pairs)
    assert exported.ops().count("_to_copy.default") == 2


def _and(y: Tensor, rest: Callable[[Tensor], Any]) -> Any:
    return rest(y)


def test_a_view_that_is_returned_still_shares_storage(export: Any) -> None:
    exported = export(lambda x: (x.t().t(), x.view(24).view(2, 12)), X)
    exported.apply(cancel_pairs)
    assert exported.ops() == ["view.default"]


def test_a_first_view_that_others_read_is_not_read_around(export: Any) -> None:
    exported = export(lambda x: (x.view(24).exp(), x.view(24).view(2, 12).exp()), X)
    exported.apply(cancel_pairs)
    exported = export(lambda x: _and(x.view(24), lambda y: (y.exp(), y.view(2, 12).exp())), X)
    exported.apply(cancel_pairs)
    assert exported.ops().count("view.default") == 2


def test_the_strides_of_dimensions_of_one_are_kept(export: Any) -> None:
    odd = torch.randn(10, 4).as_strided((1, 4), (7, 1))
    exported = export(lambda x: (x[None].view(1, 4), x[:, None].squeeze(0)), odd)
    exported.apply(cancel_pairs)


def test_an_empty_tensor_and_one_row(export: Any) -> None:
    for x in (torch.randn(0, 6), torch.randn(1, 6)):
        exported = export(lambda x: x.t().t().double().float().view(-1).view(-1, 6, 1).exp(), x)
        exported.apply(drop_asserts, cancel_pairs)
        assert exported.ops()[-1] == EXP


def test_with_an_open_size_only_what_comes_back_for_any_size_goes(export: Any) -> None:
    exported = export(
        lambda x: x.reshape(x.shape[0] * 6).reshape(x.shape[0], 6).t().t().exp(),
        X,
        dynamic_shapes=(({0: Dim.DYNAMIC},),),
    )
    exported.apply(cancel_pairs)
    assert not {"view.default", "permute.default"} & set(exported.ops())
    exported.require_equal(torch.randn(9, 6))


def test_notes_count_what_went(export: Any) -> None:
    exported = export(lambda x: x.t().t().double().float().exp(), X)
    exported.apply(drop_asserts)
    assert exported.apply(cancel_pairs) == (
        "1 pairs of casts that lose nothing",
        "1 pairs of transposes",
    )


REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@pytest.mark.parametrize("wide", [*WHOLE, *REAL], ids=str)
@pytest.mark.parametrize("narrow", [*WHOLE, *REAL], ids=str)
def test_casts_said_to_lose_nothing_do_not(narrow: torch.dtype, wide: torch.dtype) -> None:
    if narrow is torch.bool:
        values = torch.tensor([True, False])
    elif narrow.is_floating_point:
        info = torch.finfo(narrow)
        edges = [info.max, info.min, info.smallest_normal, info.smallest_normal * info.eps, 1.0]
        edges += [1 + info.eps, float("inf"), -float("inf"), -0.0]
        values = torch.tensor(edges, dtype=torch.float64).to(narrow)
    else:
        whole = torch.iinfo(narrow)
        values = torch.tensor([whole.min, whole.max, whole.max - 1, 0, 1], dtype=narrow)
    if keeps_every_value(narrow, wide):
        assert torch.equal(values.to(wide).to(narrow), values)


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        (torch.float16, torch.bfloat16),
        (torch.bfloat16, torch.float16),
        (torch.float32, torch.bfloat16),
        (torch.int16, torch.float16),
        (torch.int16, torch.bfloat16),
        (torch.int32, torch.float32),
        (torch.int64, torch.float64),
        (torch.int8, torch.uint8),
        (torch.float32, torch.int64),
        (torch.uint8, torch.bool),
    ],
    ids=str,
)
def test_casts_that_lose_something_are_known(narrow: torch.dtype, wide: torch.dtype) -> None:
    assert not keeps_every_value(narrow, wide)
