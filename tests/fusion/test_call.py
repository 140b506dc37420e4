"""One call, however it is written, gives the leaves in the captured order."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest

from planner.fusion.call import CallForm, same_constant


def forward(a: Any, b: Any, *, left: Any, right: Any, flag: Any = False, mask: Any = None) -> None:
    """A forward's signature."""


def _with_extras(x: Any, extras: Any, scale: Any = 1) -> None:
    """Containers."""


def _variadic(*tensors: Any, **named: Any) -> None:
    """As many as there are."""


MARKER = object()


def _with_defaults(x: Any, mode: Any = "a", other: Any = MARKER) -> None:
    """A plain default, and an object."""


CAPTURED = CallForm(signature(forward), (1, 2), {"right": 4, "left": 3, "mask": None})


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((1, 2), {"right": 4, "left": 3, "mask": None}),
        ((1, 2), {"left": 3, "right": 4, "mask": None}),
        ((1, 2), {"left": 3, "right": 4}),
        ((1,), {"left": 3, "b": 2, "right": 4}),
        ((), {"left": 3, "right": 4, "b": 2, "a": 1}),
        ((1, 2), {"mask": None, "left": 3, "right": 4, "flag": False}),
    ],
)
def test_ways_to_write_the_captured_call(args: Any, kwargs: Any) -> None:
    assert CAPTURED.leaves(args, kwargs) == [1, 2, 4, 3, None]


def test_values_are_taken_from_the_call() -> None:
    leaves = CAPTURED.leaves((10, 20), {"left": 30, "right": 40, "mask": 50})
    assert leaves == [10, 20, 40, 30, 50]


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((1, 2), {"left": 3, "right": 4, "flag": True}),  # not captured, not the default
        ((1, 2), {"left": 3, "right": 4, "flag": 0}),  # equal to the default, of another type
        ((1, 2), {"left": 3}),  # one is missing
        ((1, 2, 3), {"left": 3, "right": 4}),  # one too many
        ((1, 2), {"left": 3, "right": 4, "other": 5}),
        ((1, (2, 2)), {"left": 3, "right": 4}),  # another structure
    ],
)
def test_another_call_is_refused(args: Any, kwargs: Any) -> None:
    assert CAPTURED.leaves(args, kwargs) is None


def test_a_container_where_a_leaf_was_is_handed_on_for_the_guard_to_refuse() -> None:
    leaves = CAPTURED.leaves((1, [2]), {"right": 4, "left": 3, "mask": None})
    assert leaves == [1, [2], 4, 3, None]


def test_containers_are_flattened_in_order() -> None:
    form = CallForm(signature(_with_extras), ("x",), {"extras": ["a", ("b", None)]})
    assert form.leaves(("x",), {"extras": ["a", ("b", None)]}) == ["x", "a", "b", None]
    assert form.leaves(("y", ["c", ("d", "e")]), {}) == ["y", "c", "d", "e"]
    assert form.leaves(("x",), {"extras": ["a"]}) is None


def test_variadic_arguments() -> None:
    form = CallForm(signature(_variadic), (1, 2), {"z": 3, "y": 4})
    assert form.leaves((5, 6), {"y": 8, "z": 7}) == [5, 6, 7, 8]
    assert form.leaves((5, 6, 7), {"y": 8, "z": 7}) is None
    assert form.leaves((5, 6), {"y": 8, "z": 7, "x": 9}) is None


def test_a_default_that_was_left_out_may_be_written_out() -> None:
    form = CallForm(signature(_with_defaults), (1,), {})
    assert form.leaves((1,), {"mode": "a", "other": MARKER}) == [1]
    assert form.leaves((1,), {"other": object()}) is None


def test_a_forward_without_a_signature_takes_the_captured_form_only() -> None:
    form = CallForm(None, (1,), {"x": [2]})
    assert form.leaves((1,), {"x": [2]}) == [1, 2]


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (2, 2, True),
        (2, 2.0, False),
        (1, True, False),
        ("a", "a", True),
        (None, None, True),
        (None, 0, False),
        (0.5, 0.5, True),
    ],
)
def test_constants_are_compared_with_their_type(a: Any, b: Any, same: bool) -> None:
    assert same_constant(a, b) is same
