"""Masks go only on proof: every element looked at, nothing that could change after the capture."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.passes import fold_constants as folding
from planner.passes.fold_constants import fold_constants
from planner.passes.masks import simplify_masks

Q = torch.randn(2, 3, 5, 4)
SDPA = "scaled_dot_product_attention.default"


def attend(x: Tensor, mask: Tensor | None, **options: Any) -> Tensor:
    return F.scaled_dot_product_attention(x, x + 1, x - 1, attn_mask=mask, **options)


def simplified(exported: Any) -> tuple[Any, ...]:
    """The attention's arguments after its three tensors; the result is checked against eager."""
    program = exported.program
    fold_constants(program)
    simplify_masks(program)
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
    program.validate()
    with torch.no_grad():
        actual = program.module()(*exported.args)
        expected = exported.module(*exported.args)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
    return exported.node(SDPA).args[3:]


def causal(size: int = 5) -> Tensor:
    return torch.ones(size, size, dtype=torch.bool).tril()


@pytest.mark.parametrize(
    "mask",
    [
        lambda: torch.ones(5, 5, dtype=torch.bool),
        lambda: torch.ones((), dtype=torch.bool).expand(2, 1, 5, 5),
        lambda: torch.ones(2, 1, 1, 5, dtype=torch.bool).expand(2, 1, 5, 5),
        lambda: torch.zeros(5, 5),
        lambda: torch.zeros(2, 3, 5, 5),
        lambda: torch.arange(5)[:, None] < torch.arange(5)[None] + 5,
    ],
    ids=["square", "scalar", "row", "added", "added_whole", "computed"],
)
def test_a_mask_that_hides_nothing_goes(export: Any, mask: Any) -> None:
    assert simplified(export(lambda x: attend(x, mask()), Q)) in ((), (None,))


def with_hole(mask: Tensor, value: object, *place: int) -> Tensor:
    """`mask` with one element changed, by arithmetic that a tracer takes."""
    rows, columns = torch.arange(mask.shape[-2])[:, None], torch.arange(mask.shape[-1])
    here = (rows == place[0]) & (columns == place[1])
    return torch.where(here, torch.tensor(value, dtype=mask.dtype), mask)


@pytest.mark.parametrize(
    "mask",
    [
        lambda: with_hole(torch.ones(5, 5, dtype=torch.bool), False, 0, 0),
        lambda: with_hole(torch.ones(5, 5, dtype=torch.bool), False, 4, 4),
        lambda: with_hole(torch.zeros(5, 5), -1.0, 2, 3),
        lambda: with_hole(torch.zeros(5, 5), float("nan"), 2, 3),
        lambda: with_hole(causal(), True, 0, 1),
        lambda: with_hole(causal(), False, 4, 0),
        lambda: torch.ones(5, 5, dtype=torch.bool).tril(1),
        lambda: causal().flip(0),
        lambda: torch.ones(5, 5).tril(),
        lambda: torch.zeros(5, 5).masked_fill(~causal(), float("-inf")),
    ],
    ids=[
        "first_false", "last_false", "one_number", "one_nan", "causal_and_one", "causal_but_one",
        "wider", "other", "float_triangle", "float_causal",
    ],
)  # fmt: skip
def test_a_mask_that_is_neither_empty_nor_exactly_causal_stays(export: Any, mask: Any) -> None:
    exported = export(lambda x: attend(x, mask()), Q)
    program = exported.program
    fold_constants(program)
    simplify_masks(program)
    found = exported.node(SDPA).args[3:]
    assert len(found) == 1
    assert found[0] is not None


@pytest.mark.parametrize(
    "mask",
    [
        causal,
        lambda: causal().expand(2, 1, 5, 5),
        lambda: torch.arange(5)[:, None] >= torch.arange(5)[None],
        lambda: causal() & torch.ones((), dtype=torch.bool),
    ],
    ids=["square", "expanded", "computed", "and_true"],
)
def test_an_exactly_causal_square_becomes_a_flag(export: Any, mask: Any) -> None:
    assert simplified(export(lambda x: attend(x, mask()), Q)) == (None, 0.0, True)


def test_the_scale_of_a_causal_attention_is_kept(export: Any) -> None:
    exported = export(lambda x: attend(x, causal(), scale=0.3), Q)
    assert simplified(exported) == (None, 0.0, True)
    assert exported.node(SDPA).kwargs == {"scale": 0.3}


def test_a_triangle_that_is_not_square_stays(export: Any) -> None:
    def function(q: Tensor, k: Tensor) -> Tensor:
        mask = torch.ones(5, 7, dtype=torch.bool).tril()
        return F.scaled_dot_product_attention(q, k, k, attn_mask=mask)

    (mask,) = simplified(export(function, Q, torch.randn(2, 3, 7, 4)))
    assert mask is not None


def test_one_head_hidden_keeps_the_mask_of_all(export: Any) -> None:
    def function(x: Tensor) -> Tensor:
        heads = torch.arange(3)[None, :, None, None]
        return attend(x, (heads < 2) | causal())

    (mask,) = simplified(export(function, Q))
    assert mask is not None


def test_a_causal_mask_beside_dropout_stays(export: Any) -> None:
    exported = export(lambda x: attend(x, causal(), dropout_p=0.5), Q)
    fold_constants(exported.program)
    simplify_masks(exported.program)
    mask, probability = exported.node(SDPA).args[3:]
    assert mask is not None
    assert probability == 0.5


@pytest.mark.parametrize("kind", [nn.Parameter, Tensor], ids=["parameter", "buffer"])
def test_a_mask_that_is_a_weight_stays(export: Any, kind: Any) -> None:
    (mask,) = simplified(export(lambda x, m: attend(x, m), Q, m=kind(torch.zeros(5, 5))))
    assert mask is not None


@pytest.mark.parametrize("value", [torch.ones(5, 5, dtype=torch.bool), torch.zeros(5, 5)])
def test_a_mask_that_is_given_stays(export: Any, value: Tensor) -> None:
    (mask,) = simplified(export(attend, Q, value))
    assert mask is not None


def test_a_mask_computed_from_an_input_stays(export: Any) -> None:
    ids = torch.ones(2, 5, dtype=torch.long)
    (mask,) = simplified(export(lambda x, ids: attend(x, (ids != 0)[:, None, None]), Q, ids))
    assert mask is not None


@pytest.mark.parametrize("swap", [False, True])
def test_true_operands_of_and_go_and_the_given_mask_is_followed(export: Any, swap: bool) -> None:
    def function(x: Tensor, given: Tensor) -> Tensor:
        everything = torch.ones(5, 5, dtype=torch.bool)
        both = (everything & given) if swap else (given & everything)
        return attend(x, both)

    given = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    given[1, ..., 3:] = False
    exported = export(function, Q, given)
    simplified(exported)
    assert "__and__.Tensor" not in exported.ops()
    other = given.flip(0)
    torch.testing.assert_close(
        exported.program.module()(Q, other), exported.module(Q, other), rtol=1e-5, atol=1e-6
    )


def test_an_operand_of_and_that_hides_something_stays(export: Any) -> None:
    given = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    exported = export(lambda x, given: attend(x, given & causal()), Q, given)
    simplified(exported)
    assert "__and__.Tensor" in exported.ops()


def test_and_of_integers_is_no_mask(export: Any) -> None:
    exported = export(lambda x: (x & torch.ones(3, dtype=torch.long)) * 2, torch.tensor([1, 2, 3]))
    exported.apply(fold_constants, simplify_masks)
    assert "__and__.Tensor" in exported.ops()


@pytest.mark.parametrize(
    "function",
    [
        lambda m: m & torch.ones(3, dtype=torch.bool),
        lambda m: m & torch.ones(2, 3, dtype=torch.bool),
        lambda m: (m & torch.ones(2, 3, dtype=torch.bool)).view(-1),
        lambda m: torch.where(m & torch.ones(2, 3, dtype=torch.bool), 1.0, 0.0),
    ],
    ids=["returned", "returned_wider", "viewed", "strides_matter"],
)
def test_and_stays_where_its_result_is_more_than_read(export: Any, function: Any) -> None:
    exported = export(function, torch.tensor([True, False, True]))
    exported.apply(fold_constants, simplify_masks)
    assert "__and__.Tensor" in exported.ops()


def test_and_with_an_open_size_is_left_alone(export: Any) -> None:
    exported = export(
        lambda m: torch.where(m & torch.ones(2, 1, dtype=torch.bool), 1.0, 0.0),
        torch.ones(4, dtype=torch.bool),
        dynamic_shapes=(({0: torch.export.Dim.DYNAMIC},),),
    )
    exported.apply(fold_constants, simplify_masks)
    exported.require_equal(torch.tensor([True, False, True]))


def test_a_mask_too_large_to_store_is_looked_at_all_the_same(
    export: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "_LARGEST_FOLD_BYTES", 8)
    exported = export(lambda x: attend(attend(x, causal()), causal()), Q)
    assert simplified(exported) == (None, 0.0, True)
    assert not [name for name in exported.program.constants if name.startswith("folded")]


def test_notes_tell_how_many_masks_went(export: Any) -> None:
    def function(x: Tensor) -> Tensor:
        return attend(attend(x, torch.ones(5, 5, dtype=torch.bool)), causal())

    exported = export(function, Q)
    fold_constants(exported.program)
    assert simplify_masks(exported.program) == (
        "1 attention masks dropped: constant and all true",
        "1 attention masks replaced by is_causal: constant and exactly causal",
    )
