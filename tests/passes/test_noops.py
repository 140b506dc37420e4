"""What changes nothing goes; what changes strides, bits or who shares storage stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim
from torch.nn.functional import pad

from planner.passes.noops import drop_asserts, drop_idle_copies, drop_noops

X = torch.randn(4, 6)
IDS = torch.arange(6)
EXP = "exp.default"


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda x: x.view(4, 6).exp(), X),
        (lambda x: x.reshape(4, 6).exp(), X),
        (lambda x: x.expand(4, 6).exp(), X),
        (lambda x: x[:, :].exp(), X),
        (lambda x: x.permute(0, 1).exp(), X),
        (lambda x: x.clone().exp(), X),
        (lambda x: x.contiguous().exp(), X),
        (lambda x: x.to(torch.float32).exp(), X),
        (lambda x: x.detach().exp(), X),
        (lambda x: torch.dropout(x, 0.5, False).exp(), X),
        (lambda x: (x + 0).exp(), IDS),
        (lambda x: x.clone().view(4, 6).contiguous().exp(), X),
    ],
    ids=[
        "view", "reshape", "expand", "slice", "permute", "clone", "contiguous", "to", "detach",
        "dropout", "integer_zero", "chain",
    ],
)  # fmt: skip
def test_operators_that_change_nothing_go(
    export: Any, function: Callable[[Tensor], Tensor], x: Tensor
) -> None:
    exported = export(function, x)
    exported.apply(drop_asserts, drop_noops)
    assert exported.ops() == [EXP]


@pytest.mark.parametrize(
    ("function", "x", "kept"),
    [
        (lambda x: x.view(6, 4).exp(), X, "view.default"),
        (lambda x: x[:, 1:].exp(), X, "slice.Tensor"),
        (lambda x: x.expand(2, 4, 6).exp(), X, "expand.default"),
        (lambda x: x.t().contiguous().exp(), X, "clone.default"),
        (lambda x: x.contiguous().view(-1).exp(), X.t(), "clone.default"),
        (lambda x: x.double().exp(), X, "_to_copy.default"),
        (lambda x: (x + 0).exp(), X, "add.Tensor"),
        (lambda x: (x + 0).exp(), X + 1j, "add.Tensor"),
        (lambda x: (x + 0.0).exp(), IDS, "add.Tensor"),
        (lambda x: (x + 1).exp(), IDS, "add.Tensor"),
        (lambda x: (x + 0).exp(), X > 0, "add.Tensor"),
    ],
    ids=[
        "view", "slice", "expand", "transposed", "made_contiguous", "cast", "float_zero",
        "complex_zero", "promoted_by_zero", "one", "boolean",
    ],
)  # fmt: skip
def test_operators_that_change_something_stay(
    export: Any, function: Callable[[Tensor], Tensor], x: Tensor, kept: str
) -> None:
    exported = export(function, x)
    exported.apply(drop_asserts, drop_noops)
    assert kept in exported.ops()


def test_float_zero_is_kept_because_of_minus_zero(export: Any) -> None:
    exported = export(lambda x: 1 / (x + 0), torch.tensor([-0.0, 0.0]))
    exported.apply(drop_noops)
    assert exported.program.module()(*exported.args).tolist() == [float("inf"), float("inf")]


# Each returns tensors that would come to share storage if its copy went.
ALIASING: dict[str, Callable[[Tensor], Any]] = {
    "copy_of_an_input": lambda x: x.clone(),
    "view_of_a_copy_of_an_input": lambda x: x.clone().view(-1),
    "copy_of_a_view_of_an_input": lambda x: x.view(-1).clone(),
    "copy_and_its_source": lambda x: _and(x.exp(), lambda y: (y, y.clone())),
    "copy_and_a_view_of_its_source": lambda x: _and(x.exp(), lambda y: (y.view(-1), y.clone())),
    "copy_of_a_view_and_the_source": lambda x: _and(x.exp(), lambda y: (y, y.view(-1).clone())),
    "copy_and_a_part_by_split": lambda x: _and(x.exp(), lambda y: (y.split(2)[0], y.clone())),
    "copy_and_a_diagonal": lambda x: _and(x.exp(), lambda y: (y.diagonal(), y.clone())),
    "copy_and_a_transpose": lambda x: _and(x.exp(), lambda y: (y.mT, y.clone())),
    "two_copies": lambda x: _and(x.exp(), lambda y: (y.clone(), y.clone())),
    "copy_of_a_copy": lambda x: _and(x.exp(), lambda y: (y, y.clone().clone())),
}


def _and(y: Tensor, rest: Callable[[Tensor], Any]) -> Any:
    return rest(y)


@pytest.mark.parametrize("name", ALIASING)
def test_a_copy_that_keeps_results_apart_stays(export: Any, name: str) -> None:
    exported = export(ALIASING[name], X)
    exported.apply(drop_noops)
    assert "clone.default" in exported.ops()


def test_a_result_never_starts_to_share_storage_with_an_input(export: Any) -> None:
    exported = export(lambda ids: ids + 0, IDS)
    exported.apply(drop_noops)
    assert exported.ops() == ["add.Tensor"]


def test_a_copy_of_a_weight_that_is_returned_stays(export: Any) -> None:
    exported = export(lambda x, w: (x * w, w.clone()), X, w=torch.nn.Parameter(torch.ones(6)))
    exported.apply(drop_noops)
    assert exported.ops() == ["mul.Tensor", "clone.default"]


def test_a_copy_of_a_value_that_is_not_returned_goes(export: Any) -> None:
    exported = export(lambda x: x.exp().clone(), X)
    exported.apply(drop_noops)
    assert exported.ops() == [EXP]


# Each returns a tensor object that is none of the caller's others.
VIEWS: dict[str, Callable[[Tensor], Any]] = {
    "view_of_an_input": lambda x: (x.view(4, 6), x.exp()),
    "detached_input": lambda x: (x.detach(), x.exp()),
    "expanded_input": lambda x: (x.expand(4, 6), x.exp()),
    "view_and_its_source": lambda x: _and(x.exp(), lambda y: (y, y.view(4, 6))),
    "view_of_a_view": lambda x: x.detach().view(4, 6),
    "two_views": lambda x: _and(x.exp(), lambda y: (y.view(4, 6), y.detach())),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_returned_view_is_a_tensor_object_of_its_own(export: Any, name: str) -> None:
    exported = export(VIEWS[name], X)
    exported.apply(drop_noops)
    given = X.clone()
    outs = exported.program.module()(given)
    outs = outs if isinstance(outs, tuple) else (outs,)
    assert len({id(tensor) for tensor in (given, *outs)}) == len(outs) + 1


def test_a_returned_view_of_a_value_is_the_value(export: Any) -> None:
    exported = export(lambda x: x.exp().view(4, 6), X)
    exported.apply(drop_noops)
    assert exported.ops() == [EXP]


def test_a_returned_view_of_a_weight_stays(export: Any) -> None:
    exported = export(lambda x, w: (x * w, w.view(-1)), X, w=torch.nn.Parameter(torch.ones(6)))
    exported.apply(drop_noops)
    assert exported.ops() == ["mul.Tensor", "view.default"]


def test_a_written_buffer_s_old_value_is_kept_for_the_caller(export: Any) -> None:
    def swap(x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        old = state.clone()
        state.copy_(x)
        return old, x + 1

    exported = export(swap, torch.ones(3), state=torch.zeros(3))
    exported.apply(drop_noops)
    assert "clone.default" in exported.ops()


def test_sizes_that_are_only_equal_in_the_example_are_not_the_same(export: Any) -> None:
    exported = export(
        lambda x, y: (x[: y.shape[0]].exp(), y + 1),
        X,
        X,
        dynamic_shapes=(({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC}),),
    )
    exported.apply(drop_noops)
    assert "slice.Tensor" in exported.ops()
    exported.require_equal(torch.randn(7, 6), torch.randn(3, 6))


def test_with_an_open_size_what_changes_nothing_for_any_size_goes(export: Any) -> None:
    exported = export(
        lambda x: x.reshape(x.shape[0], 6).clone().exp(),
        X,
        dynamic_shapes=(({0: Dim.DYNAMIC},),),
    )
    exported.apply(drop_noops)
    assert EXP in exported.ops()
    assert not {"view.default", "clone.default"} & set(exported.ops())
    exported.require_equal(torch.randn(9, 6))


def test_notes_count_what_went(export: Any) -> None:
    exported = export(lambda x: x.clone().exp().clone().sin(), X)
    assert exported.apply(drop_noops) == ("2 x aten.clone.default that changes nothing",)
    assert exported.apply(drop_noops) == ()


def test_asserts_of_metadata_go(export: Any) -> None:
    exported = export(lambda x: x.to(torch.float64).exp(), X)
    assert "_assert_tensor_metadata.default" in exported.ops()
    assert exported.apply(drop_asserts) == ("1 metadata asserts removed",)
    assert exported.ops() == ["_to_copy.default", EXP]


IDLE_COPIES: dict[str, Callable[[Tensor], Tensor]] = {
    "pad": lambda x: pad(x, (0, 0, 0, 0)),
    "reflect_pad": lambda x: pad(x, (0, 0), mode="reflect"),
    "repeat": lambda x: x.repeat(1, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(1, dim=0),
    "cat_of_one": lambda x: torch.cat([x]),
    "cat_with_empty": lambda x: torch.cat([x[:0], x, x[:0]]),
    "cat_with_a_row_of_nothing": lambda x: torch.cat([torch.empty(0), x]),
}


@pytest.mark.parametrize("name", IDLE_COPIES)
def test_a_copy_that_eager_makes_goes_from_the_rewritten_program_alone(
    export: Any, name: str
) -> None:
    exported = export(lambda x: IDLE_COPIES[name](x).exp(), X)
    exported.apply(drop_asserts, drop_noops)
    assert exported.ops() != [EXP]
    exported.apply(drop_idle_copies, drop_noops)
    assert exported.ops() == [EXP]


WORKING_COPIES: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "pad": (lambda x: pad(x, (0, 1)), "pad.default"),
    "shift_by_pad": (lambda x: pad(x, (1, -1)), "pad.default"),
    "repeat": (lambda x: x.repeat(2, 1), "repeat.default"),
    "repeat_to_more_dimensions": (lambda x: x.repeat(1, 1, 1), "repeat.default"),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, dim=0), "repeat_interleave.self_int"),
    "cat_of_two": (lambda x: torch.cat([x, x]), "cat.default"),
    "cat_to_other_strides": (lambda x: torch.cat([x.t()[:, :0], x.t()], 1), "cat.default"),
    "cat_to_another_dtype": (lambda x: torch.cat([x.double()[:0], x]), "cat.default"),
    "an_input_returned": (lambda x: torch.cat([x, x[:0]]), "cat.default"),
}


@pytest.mark.parametrize("name", WORKING_COPIES)
def test_a_copy_that_does_something_stays(export: Any, name: str) -> None:
    function, kept = WORKING_COPIES[name]
    after = (lambda x: x) if name == "an_input_returned" else torch.exp
    exported = export(lambda x: after(function(x)), X)
    exported.apply(drop_asserts, drop_noops, drop_idle_copies)
    assert kept in exported.ops()
