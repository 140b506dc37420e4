"""Concatenations inside regions: rotary embeddings, prefixes, pieces that may not join."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from planner.fusion.reference import reference

Q, COS, SIN = torch.randn(2, 5, 3, 8).transpose(1, 2), torch.randn(2, 5, 8), torch.randn(2, 5, 8)


def _rotated(x: Any) -> Any:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


def _rope(q: Any, cos: Any, sin: Any) -> Any:
    return q * cos.unsqueeze(1) + _rotated(q) * sin.unsqueeze(1)


def _partial(q: Any, cos: Any, sin: Any) -> Any:
    """The first quarter is turned, the rest passes: a concatenation within another."""
    turned, passed = q[..., :2], q[..., 2:]
    cos, sin = cos[..., :2].unsqueeze(1), sin[..., :2].unsqueeze(1)
    return torch.cat((turned * cos + _rotated(turned) * sin, passed * 2), -1)


def _same(grown: Any, rewritten: Any, form: Any, *tensors: torch.Tensor) -> None:
    found = rewritten(grown)(*tensors)
    wanted = form(*tensors)
    torch.testing.assert_close(found, wanted)
    assert found.stride() == wanted.stride()


@pytest.mark.parametrize("form", [_rope, _partial])
def test_rotary_embeddings_are_one_region(grow: Any, rewritten: Any, form: Any) -> None:
    grown = grow(form, Q, COS, SIN)
    (plan,) = grown.plans
    assert "cat" in grown.regions[0]
    assert "slice" not in grown.regions[0]
    _same(grown, rewritten, form, Q, COS, SIN)
    assert len(plan.lowered.outputs) == 1


def test_a_prefix_of_one_before_a_norm(grow: Any, rewritten: Any) -> None:
    """As a vision transformer has it: a class token, patches, positions."""

    def form(token: Any, patches: Any, positions: Any) -> Any:
        whole = torch.cat((token.expand(2, 1, 8), patches * 2), 1) + positions
        return torch.nn.functional.layer_norm(whole, [8])

    tensors = (torch.randn(1, 1, 8), torch.randn(2, 16, 8), torch.randn(1, 17, 8))
    grown = grow(form, *tensors)
    assert any({"cat", "layer_norm"} <= set(names) for names in grown.regions)
    _same(grown, rewritten, form, *tensors)


def test_three_pieces_in_the_middle(grow: Any, rewritten: Any) -> None:
    def form(a: Any, b: Any, c: Any) -> Any:
        return torch.cat((a.exp(), b, c * a[:, :1]), 1).tanh()

    tensors = (torch.randn(3, 2, 5), torch.randn(3, 1, 5), torch.randn(3, 4, 5))
    grown = grow(form, *tensors)
    assert len(grown.regions) == 1
    _same(grown, rewritten, form, *tensors)


def test_a_reduction_over_what_is_concatenated(grow: Any, rewritten: Any) -> None:
    def form(a: Any, b: Any) -> Any:
        return torch.softmax(torch.cat((a * 2, b), -1), -1)

    tensors = (torch.randn(4, 7), torch.randn(4, 3))
    grown = grow(form, *tensors)
    assert len(grown.regions) == 1
    _same(grown, rewritten, form, *tensors)


def test_a_piece_that_is_read_elsewhere_stays_outside(grow: Any, rewritten: Any) -> None:
    def form(a: Any, b: Any) -> Any:
        piece = a.exp()
        return torch.cat((piece, b), -1).tanh(), piece

    tensors = (torch.randn(4, 7), torch.randn(4, 3))
    grown = grow(form, *tensors)
    assert all("exp" not in names for names in grown.regions)
    found, wanted = rewritten(grown)(*tensors), form(*tensors)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (lambda a, b: torch.cat((a * 2, b), 0).exp(), "along the leading dimension"),
        (lambda a, b: torch.cat((a, b), 1).view(4, 7, 2).exp(), "view divides"),
    ],
)
def test_pieces_that_no_kernel_holds_are_refused(grow: Any, form: Any, reason: str) -> None:
    grown = grow(form, torch.randn(4, 7), torch.randn(4, 7))
    assert all("cat" not in names for names in grown.regions)
    assert any(reason in m.reason for m in grown.rejected)


def test_one_tensor_in_two_pieces_is_read_twice(grow: Any, rewritten: Any) -> None:
    def form(a: Any, b: Any) -> Any:
        return torch.cat((a, b, a), 1).exp()

    tensors = (torch.randn(4, 7), torch.randn(4, 3))
    grown = grow(form, *tensors)
    assert grown.regions == [["cat", "exp"]]
    assert [item.name for item in grown.plans[0].lowered.region.inputs] == ["a", "b", "a_2"]
    _same(grown, rewritten, form, *tensors)


def test_halves_rotated_by_one_table_are_read_in_both(grow: Any, rewritten: Any) -> None:
    def form(first: Any, second: Any, cos: Any, sin: Any) -> Any:
        turned = (first * cos - second * sin, second * cos + first * sin)
        return torch.cat(turned, -1) * 2

    tensors = (*torch.randn(2, 3, 5, 4), *torch.randn(2, 5, 4))
    grown = grow(form, *tensors)
    assert len(grown.regions) == 1
    assert len(grown.plans[0].lowered.inputs) == 4
    _same(grown, rewritten, form, *tensors)


def test_a_cache_that_was_empty_takes_what_is_computed(grow: Any, rewritten: Any) -> None:
    """As Llama has it: rotated keys, whose halves lie side by side, behind an empty cache."""

    def form(empty: Any, x: Any, cos: Any, sin: Any) -> Any:
        turned = torch.cat((-x[..., 4:], x[..., :4]), -1)
        return torch.cat((empty, x * cos + turned * sin), -2)

    tensors = (torch.empty(0), torch.randn(2, 3, 5, 8), torch.randn(5, 8), torch.randn(5, 8))
    grown = grow(form, *tensors)
    assert len(grown.regions) == 1
    lowered = grown.plans[0].lowered
    assert [item.name for item in lowered.inputs][-1] == "empty_1"
    by_name = dict(zip(("empty_1", "x_1", "cos_1", "sin_1"), tensors, strict=True))
    sliced = {"slice_1": tensors[1][..., 4:], "slice_2": tensors[1][..., :4]}
    given = [(by_name | sliced)[item.name] for item in lowered.inputs]
    torch.testing.assert_close(reference(lowered)(*given)[0], form(*tensors))
    _same(grown, rewritten, form, *tensors)


def test_pieces_of_no_rows_stay_beside_one_another(grow: Any, rewritten: Any) -> None:
    def form(a: Any, b: Any) -> Any:
        return torch.cat((a * 2, b), -1).exp()

    tensors = (torch.empty(0, 5, 4), torch.empty(0, 5, 3))
    grown = grow(form, *tensors)
    assert rewritten(grown)(*tensors).shape == (0, 5, 7)
    _same(grow(form, *tensors), rewritten, form, *tensors)


def test_an_empty_vector_beside_a_tensor_is_no_piece(grow: Any, rewritten: Any) -> None:
    def form(empty: Any, x: Any) -> Any:
        return torch.cat((empty, x * 2), -2)

    tensors = (torch.empty(0), torch.randn(2, 3, 5, 4))
    grown = grow(form, *tensors)
    assert grown.regions == [["mul", "cat"]]
    _same(grown, rewritten, form, *tensors)


def test_interleaved_halves_are_stacked(grow: Any, rewritten: Any) -> None:
    def form(x: Any, cos: Any, sin: Any) -> Any:
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
        return x * cos + turned * sin

    tensors = (torch.randn(2, 3, 5, 8), torch.randn(5, 8), torch.randn(5, 8))
    grown = grow(form, *tensors)
    assert grown.regions == [["neg", "stack", "flatten", "mul", "mul", "add"]]
    _same(grown, rewritten, form, *tensors)


def test_a_reduction_of_a_piece_stays_apart(grow: Any, rewritten: Any) -> None:
    def form(a: Any, b: Any) -> Any:
        return torch.cat((a.softmax(-1), b), 1).exp()

    tensors = (torch.randn(4, 7), torch.randn(4, 3))
    grown = grow(form, *tensors)
    assert grown.regions == [["softmax"], ["cat", "exp"]]
    assert any("within a piece" in m.reason for m in grown.rejected)
    _same(grown, rewritten, form, *tensors)
