"""Where growing in graph order puts a border in the wrong place, the choice does not."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from planner.fusion import regions
from planner.fusion.reach import cycle
from planner.fusion.regions import find_regions, survey_of
from planner.fusion.survey import Survey
from planner.fusion.weights import Rates

GPU = Rates(bytes_per_us=1000.0, launch_us=5.0, latency_us=1.0, on_gpu=True)
X, R, W = torch.randn(64, 128), torch.randn(64, 128), torch.randn(128, 128)


@pytest.fixture
def survey(trace: Any) -> Callable[..., Survey]:
    """The regions of a function of tensors, without named rules."""
    return lambda function, *tensors: survey_of(
        trace(function, *tensors).graph, (), lambda node: node.name, GPU
    )


def _names(found: Survey, sets: Any) -> list[list[str]]:
    return [[str(node.target).split(".")[1] for node in found.reach.members(bits)] for bits in sets]


def test_what_lies_between_two_kinds_of_rows_joins_the_side_that_saves_more(
    survey: Any, grow: Any, rewritten: Any
) -> None:
    """The norm's result is stored anyhow: the sum costs nothing beside the softmax."""

    def form(x: Any, r: Any, w: Any) -> Any:
        h = layer_norm(x, [64, 128])
        return (h + r).softmax(-1), h @ w

    found = survey(form, X, R, W)
    grown = [bits for bits in found.growth.regions if bits.bit_count() > 1]
    assert _names(found, grown) == [["layer_norm", "add"]]
    assert _names(found, found.choose()) == [["layer_norm"], ["add", "softmax"]]
    whole = grow(form, X, R, W)
    assert whole.regions == [["layer_norm"], ["add", "softmax"]]
    torch.testing.assert_close(rewritten(whole)(X, R, W), form(X, R, W))


def test_without_another_reader_it_stays_with_the_first(survey: Any) -> None:
    """Both sides save as much: graph order decides."""

    def form(x: Any, r: Any) -> Any:
        return (layer_norm(x, [64, 128]) + r).softmax(-1)

    found = survey(form, X, R)
    assert _names(found, found.choose()) == [["layer_norm", "add"], ["softmax"]]


def test_of_two_regions_that_wait_for_each_other_the_larger_is_taken(survey: Any) -> None:
    """Growing in graph order takes the first pair, which keeps the second apart."""

    def form(x: Any, y: Any, w: Any, v: Any) -> Any:
        a, b = x.exp(), y.sin()
        over_a, over_b = a @ w, b @ v
        return a + over_b, b + over_a

    tensors = (X[:, :32], X, torch.randn(32, 128), torch.randn(128, 32))
    found = survey(form, *tensors)
    grown = [bits for bits in found.growth.regions if bits.bit_count() > 1]
    assert _names(found, grown) == [["exp", "add"]]
    assert _names(found, found.choose()) == [["sin", "add"]]


def test_a_long_row_is_not_read_three_times_by_many_inputs(survey: Any) -> None:
    """40,000 columns are passed over three times: four inputs once, and their sum three times,
    is less.
    """

    def form(*tensors: Any) -> Any:
        return sum(tensors[1:], tensors[0]).softmax(-1)

    long = [torch.empty(1000, 40000, device="meta") for _ in range(4)]
    short = [tensor[:, :4000].contiguous() for tensor in long]
    chosen = survey(form, *long)
    assert _names(chosen, chosen.growth.regions) == [["add", "add", "add", "softmax"]]
    assert _names(chosen, chosen.choose()) == [["add", "add", "add"], ["softmax"]]
    held = survey(form, *short)
    assert _names(held, held.choose()) == [["add", "add", "add", "softmax"]]


def test_a_region_that_another_reads_back_is_cut_where_it_must(survey: Any) -> None:
    """Only up to the product's operand can run before it."""

    def form(x: Any, r: Any, w: Any) -> Any:
        h = x * r
        return (h.exp() @ w) * h.tanh() + h

    found = survey(form, X, R, W)
    assert cycle(found.choose(), found.reach.later) == ()
    assert _names(found, found.choose())[0] == ["mul", "exp"]


def _random_function(seed: int) -> Callable[..., Any]:
    """A program of pointwise operators, reductions over one or both dimensions and products."""
    own = random.Random(seed)
    steps = [(own.randrange(7), own.random(), own.random()) for _ in range(own.randrange(6, 22))]

    def form(x: Any, y: Any, w: Any) -> Any:
        values = [x, y]
        for kind, one, two in steps:
            # Late values mostly, so that chains form.
            a, b = (values[-1 - int(part * part * len(values))] for part in (one, two))
            values.append(
                (
                    lambda a=a, b=b: a + b,
                    lambda a=a, b=b: a * b.tanh(),
                    lambda a=a: a.sin(),
                    lambda a=a: a - a.mean(-1, keepdim=True),
                    lambda a=a: a - a.mean((0, 1), keepdim=True),
                    lambda a=a: a @ w,
                    lambda a=a: a.softmax(-1),
                )[kind]()
            )
        return values[-1], values[len(values) // 2]

    return form


@pytest.mark.parametrize("seed", range(25))
def test_what_is_chosen_can_run_and_saves_no_less_than_growth(survey: Any, seed: int) -> None:
    found = survey(_random_function(seed), X, R, W)
    chosen = found.choose()
    assert cycle(chosen, found.reach.later) == ()
    assert all(found.reach.convex(bits) for bits in chosen)
    assert sum(chosen).bit_count() == sum(bits.bit_count() for bits in chosen)
    grown = [bits for bits in found.growth.regions if bits.bit_count() > 1]
    saved = [sum(found.prices.saving_us(bits) or 0.0 for bits in sets) for sets in (chosen, grown)]
    assert saved[0] >= saved[1] - 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_random_programs_compute_the_same_with_what_was_chosen(
    grow: Any, rewritten: Any, seed: int
) -> None:
    form = _random_function(100 + seed)
    tensors = (torch.randn(5, 7), torch.randn(5, 7), torch.randn(7, 7))
    torch.testing.assert_close(rewritten(grow(form, *tensors))(*tensors), form(*tensors))


def _layers(count: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def form(x: Tensor, r: Tensor, w: Tensor) -> Tensor:
        for _ in range(count):
            x = ((x + r) * torch.rsqrt((x + r).pow(2).mean(-1, keepdim=True) + 1e-6)) @ w
            x = (x.exp() * r).tanh() @ w
        return x

    return form


def test_equal_layers_are_lowered_and_chosen_as_one(
    trace: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    lowered = regions._lowered
    seen: list[Any] = []

    def counted(*args: Any) -> Any:
        seen.append(args)
        return lowered(*args)

    monkeypatch.setattr(regions, "_lowered", counted)
    for layers in (3, 12):
        seen.clear()
        found = survey_of(trace(_layers(layers), X, R, W).graph, (), lambda n: n.name, GPU)
        assert len(found.choose()) == 2 * layers
        counts.append(len(seen))
    assert counts[0] == counts[1]


def test_views_at_the_ends_stay_outside_so_that_equal_layers_are_equal(survey: Any) -> None:
    """A table turned for all layers and read by each: none of them takes the view."""

    def form(x: Any, table: Any, w: Any) -> Any:
        turned = (table @ w).t()
        for _ in range(3):
            x = ((x * turned).tanh() + 1).t() @ w
        return x

    found = survey(form, torch.randn(128, 128), torch.randn(128, 128), W)
    chosen = found.choose()
    assert _names(found, chosen) == [["mul", "tanh", "add"]] * 3
    assert len({found.form(bits) for bits in chosen}) == 1


def test_a_view_between_operators_is_inside(survey: Any) -> None:
    found = survey(lambda x: (x.exp() * 2).view(128, 64).tanh() + 1, X)
    assert _names(found, found.choose()) == [["exp", "mul", "view", "tanh", "add"]]


def test_the_same_graph_gives_the_same_regions(trace: Any) -> None:
    def once() -> list[tuple[str, ...]]:
        graph = trace(_random_function(7), X, R, W).graph
        plans, _ = find_regions(graph, (), lambda node: node.name, GPU)
        return [tuple(node.name for node in plan.lowered.nodes) for plan in plans]

    assert once() == once()
