"""Views, permutations and reductions over any dimensions within a region: what joins, what does
not, and that the kernel is right under the numerics contract.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import batch_norm, gelu, group_norm, layer_norm, prelu, silu

from fusion_kernels.emit.source import Provenance, emit
from fusion_kernels.library import define
from planner.fusion.lower import is_view
from planner.fusion.plan import write_kernel
from planner.verify import verify_region

Form = Callable[..., Any]


def _draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _attention_copy(x: Tensor) -> Tensor:
    heads = (x * 0.125).view(2, 6, 4, 8).transpose(1, 2)
    return heads.clone(memory_format=torch.contiguous_format)


def _permuted_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    last = layer_norm(x.permute(0, 2, 3, 1), (w.shape[0],), w, b)
    return last.permute(0, 3, 1, 2) * 2


def _written_out_group_norm(x: Tensor, w: Tensor) -> Tensor:
    groups = x.reshape(2, 4, -1)
    mean, var = groups.mean(-1, keepdim=True), groups.var(-1, keepdim=True, correction=0)
    normed = (groups - mean) * torch.rsqrt(var + 1e-5)
    return normed.reshape(x.shape) * w[:, None, None] + x


def _standardised(x: Tensor) -> Tensor:
    return (x - x.mean((0, 2), keepdim=True)) / x.std((0, 2), keepdim=True)


IMAGE, CHANNELS = (2, 8, 5, 7), (8,)
FORMS: dict[str, tuple[Form, tuple[tuple[int, ...], ...]]] = {
    "view between": (lambda x: gelu(x + 1).view(6, 7, 4) * 2, ((6, 28),)),
    "view and back": (lambda x: gelu(x.view(42, 4) * 2).view(6, 7, 4) + x, ((6, 7, 4),)),
    "transposed between": (lambda x, y: (x * 2).transpose(1, 2) + y, ((3, 4, 5), (3, 5, 4))),
    "copy into heads": (_attention_copy, ((2, 6, 32),)),
    "norm of channels": (_permuted_norm, (IMAGE, CHANNELS, CHANNELS)),
    "pieces of one value a row": (
        lambda x: torch.cat([y := x.amax((0, 1, 3), keepdim=True), y.sin()], 2),
        ((33, 1, 1, 1),),
    ),
    "group norm": (lambda x, w, b: silu(group_norm(x, 2, w, b)), (IMAGE, CHANNELS, CHANNELS)),
    "group norm of rows": (lambda x: group_norm(x * 2, 4), ((5, 8),)),
    "one group": (
        lambda x, w, y: silu(group_norm(x, 1, w)) + y,
        ((3, 8, 257), CHANNELS, (3, 8, 257)),
    ),
    "groups of one": (lambda x, w: silu(group_norm(x, 8, w)), (IMAGE, CHANNELS)),
    "written out group norm": (_written_out_group_norm, (IMAGE, CHANNELS)),
    "batch norm": (
        lambda x, m, v, w, b: silu(batch_norm(x, m, v.abs() + 0.5, w, b)),
        (IMAGE, *(CHANNELS,) * 4),
    ),
    "prelu of channels": (lambda x, w: prelu(x * 2, w), (IMAGE, CHANNELS)),
    "leading rows": (lambda x: (x - x.amax(0, keepdim=True)).exp(), ((6, 17),)),
    "dropped rows": (lambda x: (x * x).mean(-1).sqrt(), ((3, 4, 257),)),
    "dropped and back": (lambda x: x / x.norm(dim=-1).unsqueeze(-1), ((3, 4, 17),)),
    "softmax of the middle": (lambda x: torch.softmax(x * 2, 1), ((3, 9, 4),)),
    "outer dimensions": (_standardised, ((6, 5, 7),)),
    "product": (lambda x: x * x.abs().clamp(0.5, 2).prod(-1, keepdim=True), ((5, 9),)),
    "product of integers": (lambda x: (x.to(torch.int32) % 3 + 1).prod(0), ((7, 5),)),
    "all of it": (lambda x: (x * 2).sum(), ((7, 9),)),
    "pooled": (lambda x: silu(x).mean((2, 3)) * 2, (IMAGE,)),
    "expanded": (lambda x, y: (x * 2).unsqueeze(1).expand(3, 5, 4) * y, ((3, 4), (3, 5, 4))),
    "vector down the rows": (lambda x, w: x * (w * 2).unsqueeze(-1), ((4, 9), (4,))),
}


@pytest.fixture
def verified(tmp_path: Path) -> Callable[[Any], None]:
    """Hold a region against float64: run by torch, and its text in the interpreter."""

    def verify(plan: Any) -> None:
        source = emit(plan.lowered.region, Provenance("this test"))
        operator = define(source, write_kernel(source, tmp_path))
        rows = verify_region(plan.lowered, operator, "cpu", seed=3)
        assert rows
        assert not [row for row in rows if not row.passed]

    return verify


@pytest.mark.parametrize("name", FORMS)
def test_one_region_holds_it_and_is_right(
    name: str, grow: Any, rewritten: Any, verified: Any
) -> None:
    form, shapes = FORMS[name]
    tensors = [_draw(*shape) for shape in shapes]
    grown = grow(form, *tensors)
    assert len(grown.plans) == 1, (grown.regions, grown.rejected)
    calls = [node for node in grown.module.graph.nodes if node.op == "call_function"]
    assert not [n for n in calls if n not in grown.plans[0].lowered.nodes and not is_view(n)]
    verified(grown.plans[0])
    wanted = form(*tensors)
    (out,) = torch.utils._pytree.tree_leaves(rewritten(grown)(*tensors))
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5)
    assert (out.shape, out.stride()) == (wanted.shape, wanted.stride())


def test_a_view_that_others_read_stays_beside_the_region(grow: Any, rewritten: Any) -> None:
    def form(x: Any, w: Any) -> Any:
        y = (x * 2).transpose(0, 1)
        return y @ w, y.tanh() + 1

    tensors = (_draw(5, 3), _draw(5, 4))
    grown = grow(form, *tensors)
    (plan,) = grown.plans
    assert [node.name for node in plan.lowered.kept] == ["transpose"]
    assert [node.name for node in plan.lowered.outputs] == ["mul", "add"]
    for out, wanted in zip(rewritten(grown)(*tensors), form(*tensors), strict=True):
        torch.testing.assert_close(out, wanted)


def test_views_at_the_end_are_not_the_regions(grow: Any) -> None:
    grown = grow(lambda x, w: (x * 2 + 1).view(3, 8).t() @ w, _draw(4, 6), _draw(3, 2))
    assert grown.regions == [["mul", "add"]]
    assert grown.plans[0].lowered.as_they_lie


def test_a_tensor_and_its_transpose_are_not_walked_together(grow: Any, rewritten: Any) -> None:
    def form(x: Any) -> Any:
        y = x * 2
        return y + y.t()

    grown = grow(form, _draw(5, 5))
    assert any("twice" in m.reason for m in grown.rejected)
    torch.testing.assert_close(rewritten(grown)(_draw(5, 5)), form(_draw(5, 5)))


def test_shapes_without_common_parts_stay_apart(grow: Any) -> None:
    grown = grow(lambda x: (x * 2).view(4, 6).tanh() + 1, _draw(6, 4))
    assert grown.regions == [["tanh", "add"]]
    assert any("divides 6 elements by 4" in m.reason for m in grown.rejected)


def test_rows_of_two_kinds_stay_apart(grow: Any) -> None:
    grown = grow(lambda x: torch.softmax(torch.softmax(x * 2, 0), 1), _draw(5, 7))
    assert grown.regions == [["mul", "softmax"], ["softmax"]]
    assert any("different dimensions" in m.reason for m in grown.rejected)


def test_a_piece_that_is_reduced_beside_its_concatenation_stays_apart(
    grow: Any, rewritten: Any
) -> None:
    def form(x: Tensor, first: Tensor) -> Tensor:
        whole = torch.cat([first.expand(5, 1, 7), x * 2], 1)
        return whole + x.sum(1, keepdim=True)

    tensors = _draw(5, 3, 7), _draw(1, 1, 7)
    out = rewritten(grow(form, *tensors))(*tensors)
    torch.testing.assert_close(out, form(*tensors))


def test_groups_of_one_element_are_left_to_eager(grow: Any) -> None:
    grown = grow(lambda x: group_norm(x * 2, 8) + x, _draw(5, 8))
    assert grown.regions == []
    assert grow(lambda x: group_norm(x * 2, 8) + x, _draw(5, 8, 3)).regions


def test_a_caller_may_not_find_a_view_where_a_tensor_of_its_own_was(
    grow: Any, rewritten: Any
) -> None:
    """What is returned is one result in two shapes, sharing storage as in eager."""

    def form(x: Any) -> Any:
        y = x * 2
        return y, y.view(-1), y.view(-1).tanh() * 2

    grown = grow(form, _draw(4, 6))
    first, second, _ = rewritten(grown)(_draw(4, 6))
    assert first.data_ptr() == second.data_ptr()
