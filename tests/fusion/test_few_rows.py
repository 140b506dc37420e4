"""What shorter dimensions a region is checked with, and that its operators and its kernel mean the
same there.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor
from torch.nn.functional import gelu, group_norm, layer_norm

from fusion_kernels.evaluate import evaluate
from planner.fusion.few_rows import few_rows
from planner.fusion.lowered import LoweredRegion
from planner.fusion.reference import free_dims, reference, sizes_with
from random_programs import Program, programs

Form = Callable[..., Any]


def _product(c: Tensor, b: Tensor) -> Tensor:
    """A product written as a sum over a broadcast."""
    return (c[:, :, :, None] * b[:, :, None]).sum(-1) * 0.5


def _into_heads(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    """Reading `x` takes a view that names the 24."""
    return gelu(x * w).view(4, 64, 2, 24).transpose(1, 2) + y


def _halves(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x.neg(), y * 2], 1).exp()


FORMS: dict[str, tuple[Form, tuple[tuple[int, ...], ...], tuple[int, ...]]] = {
    "norm": (lambda x, w: layer_norm(x * 2, [48], w), ((4, 64, 48), (48,)), (0, 1)),
    "product": (_product, ((3, 4, 32, 24), (3, 4, 32, 24)), (0, 1, 2, 3)),
    "heads": (_into_heads, ((4, 64, 48), (48,), (4, 2, 64, 24)), (0, 1, 2)),
    "concatenation": (_halves, ((4, 16, 32), (4, 48, 32)), (0, 2)),
    "groups": (lambda x: group_norm(x, 8) * 2, ((4, 32, 40),), (0,)),
    "slice": (lambda x, y: gelu(x * 2)[:, 16:48] * y, ((4, 64, 48), (4, 32, 48)), (0,)),
    "no rows": (lambda x: torch.softmax(x * 2, 0), ((4096,),), ()),
}


@pytest.fixture
def lowered_of(grow: Any) -> Callable[..., LoweredRegion]:
    """The one region of a function of tensors."""

    def lowered(form: Form, *tensors: Tensor) -> LoweredRegion:
        (plan,) = grow(form, *tensors).plans
        region: LoweredRegion = plan.lowered
        return region

    return lowered


def _tensors(shapes: tuple[tuple[int, ...], ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(len(shapes))
    return [torch.randn(shape, generator=generator) for shape in shapes]


def _drawn(lowered: LoweredRegion, sizes: dict[int, int]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    drawn = []
    for node in lowered.inputs:
        shape, dtype = sizes_with(lowered, node, sizes), node.meta["val"].dtype
        values = torch.randn(shape, generator=generator) * 2
        drawn.append(values > 0 if dtype is torch.bool else values.to(dtype))
    return drawn


def _agree(lowered: LoweredRegion, sizes: dict[int, int]) -> None:
    """The kernel's region and the operators, both at these sizes."""
    tensors = _drawn(lowered, sizes)
    results = lowered.returned(evaluate(lowered.region, lowered.arguments(tensors)))
    wanted = reference(lowered, sizes)(*tensors)
    for node, out, ref in zip(lowered.outputs, results, wanted, strict=True):
        assert out.shape == ref.shape == sizes_with(lowered, node, sizes)
        torch.testing.assert_close(out, ref, equal_nan=True, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("name", FORMS)
def test_dimensions_that_may_have_another_size(name: str, lowered_of: Any) -> None:
    form, shapes, free = FORMS[name]
    assert free_dims(lowered_of(form, *_tensors(shapes))) == free


@pytest.mark.parametrize("most", [1, 1 << 11, 1 << 14])
@pytest.mark.parametrize("name", FORMS)
def test_the_region_means_the_same_at_few_rows(name: str, most: int, lowered_of: Any) -> None:
    form, shapes, free = FORMS[name]
    lowered = lowered_of(form, *_tensors(shapes))
    sizes = few_rows(lowered, most)
    assert set(sizes) <= set(free)
    _agree(lowered, sizes)


def test_what_is_small_keeps_its_sizes(lowered_of: Any) -> None:
    lowered = lowered_of(lambda x, w: layer_norm(x * 2, [48], w), *_tensors(((4, 64, 48), (48,))))
    assert few_rows(lowered, 1 << 20) == {}


def test_two_indices_of_the_leading_dimension_stay(lowered_of: Any) -> None:
    """With one alone no draw is expanded along it."""
    lowered = lowered_of(lambda x: gelu(x * 2), *_tensors(((4, 48, 512),)))
    assert few_rows(lowered, 1) == {0: 2, 1: 16, 2: 16}


def test_the_leading_dimension_gives_way_first(lowered_of: Any) -> None:
    lowered = lowered_of(lambda x: gelu(x * 2), *_tensors(((512, 64, 4),)))
    assert few_rows(lowered, 1 << 12) == {0: 16}


@pytest.mark.parametrize("size", [17, 24, 36, 50, 64, 257])
def test_the_powers_of_two_that_divide_a_size_stay(size: int, lowered_of: Any) -> None:
    """Else Triton compiles the kernel anew for what it asks of sizes and strides."""
    lowered = lowered_of(lambda x: gelu(x * 2), *_tensors(((2, size, 40),)))
    short = few_rows(lowered, 1)[1]
    assert 8 <= short <= 16
    assert gcd(short, 16) == gcd(size, 16)


def test_random_programs_mean_the_same_at_few_rows(grow: Any) -> None:
    seen = 0

    @settings(
        max_examples=60,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(programs())
    def one(program: Program) -> None:
        nonlocal seen
        if program.mutates:
            return
        for plan in grow(program, *program.tensors()).plans:
            sizes = few_rows(plan.lowered, 1)
            if sizes:
                tensors = _drawn(plan.lowered, sizes)
                found = evaluate(plan.lowered.region, plan.lowered.arguments(tensors))
                results = plan.lowered.returned(found)
                wanted = reference(plan.lowered, sizes)(*tensors)
                assert [out.shape for out in results] == [ref.shape for ref in wanted]
                seen += 1

    one()
    assert seen >= 20
