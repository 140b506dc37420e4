"""Fresh inputs differ where they may and keep what has a meaning."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from planner.draws import draw_like


def _drawn(example: Any, seed: int = 0) -> Any:
    (value,), _ = draw_like((example,), {}, seed)
    return value


def test_a_seed_fixes_the_draw_and_another_changes_it() -> None:
    x = torch.randn(64)
    assert torch.equal(_drawn(x, 3), _drawn(x, 3))
    assert not torch.equal(_drawn(x, 3), _drawn(x, 4))


def test_floats_have_the_examples_mean_and_deviation() -> None:
    drawn = _drawn(5 + 0.1 * torch.randn(20000))
    assert abs(float(drawn.mean()) - 5) < 0.01
    assert abs(float(drawn.std()) - 0.1) < 0.01


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0])
def test_a_constant_example_is_not_drawn_constant(value: float) -> None:
    """Examples are often torch.zeros or torch.ones, which would check next to nothing."""
    drawn = _drawn(torch.full((1000,), value))
    assert abs(float(drawn.mean()) - value) < 0.2
    assert float(drawn.std()) > 0.5


def test_integers_are_the_examples_in_another_order() -> None:
    ids = torch.arange(100).view(10, 10)
    drawn = _drawn(ids)
    assert drawn.shape == ids.shape
    assert not torch.equal(drawn, ids)
    assert torch.equal(drawn.flatten().sort().values, ids.flatten())


KEPT = {
    "booleans": torch.rand(8) > 0.5,
    "token types": torch.zeros(4, 8, dtype=torch.int64),
    "an integer mask": torch.tensor([[1, 1, 0]]),
    "a mask in floats": torch.tensor([1.0, 1.0, 0.0]),
    "a mask of minus infinity": torch.tensor([0.0, -torch.inf]),
    "a mask of the smallest float": torch.tensor([0.0, torch.finfo(torch.float32).min]),
    "nothing": torch.empty(0, 8),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_has_a_meaning_is_kept(name: str) -> None:
    assert torch.equal(_drawn(KEPT[name]), KEPT[name])


LAYOUTS = {
    "transposed": torch.randn(4, 6).t(),
    "every second": torch.randn(4, 12)[:, ::2],
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "expanded": torch.randn(1, 6).expand(4, 6),
    "expanded ids": torch.arange(6).expand(4, 6),
    "a scalar": torch.tensor(0.5),
    "bfloat16": torch.randn(4, 6).bfloat16(),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_shape_dtype_and_strides_are_the_examples(name: str) -> None:
    """A guard of the fused module looks at them: other strides would check the original twice."""
    example = LAYOUTS[name]
    drawn = _drawn(example)
    assert (drawn.shape, drawn.dtype, drawn.stride()) == (
        example.shape,
        example.dtype,
        example.stride(),
    )
    assert not torch.equal(drawn, example)


def test_the_example_is_left_alone() -> None:
    x, n = torch.randn(8), torch.arange(8)
    before = x.clone(), n.clone()
    draw_like((x, n), {}, 0)
    assert torch.equal(x, before[0])
    assert torch.equal(n, before[1])


def test_nests_and_values_that_are_no_tensors_are_kept() -> None:
    args, kwargs = draw_like(([torch.randn(3), None], 2), {"flag": True, "t": (torch.ones(2),)}, 0)
    assert isinstance(args[0][0], Tensor)
    assert (args[0][1], args[1], kwargs["flag"]) == (None, 2, True)
    assert isinstance(kwargs["t"], tuple)


def test_tensors_of_one_call_differ() -> None:
    (a, b), _ = draw_like((torch.randn(8), torch.randn(8)), {}, 0)
    assert not torch.equal(a, b)


def test_a_draw_requires_no_grad() -> None:
    assert not _drawn(torch.randn(4).requires_grad_()).requires_grad


def test_the_random_state_is_left_alone() -> None:
    state = torch.get_rng_state()
    _drawn(torch.ones(8))
    assert torch.equal(torch.get_rng_state(), state)
