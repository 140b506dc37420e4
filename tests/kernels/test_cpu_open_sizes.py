"""Regions with open sizes on CPU: compiled once, equal at every size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from fusion_kernels.cpu import CpuRegion, compile_region
from fusion_kernels.evaluate import evaluate
from fusion_kernels.ir import Region

SIZES = ((2, 9), (1, 1), (1, 9), (5, 1), (3, 257), (0, 4), (2, 0), (8, 64), (4, 4), (7, 31))


def _heads(batch: int, time: int, width: int) -> Tensor:
    """A projection's result as attention reads it: [batch, heads, time, width], time outside."""
    return torch.randn(batch, time, 4 * width).view(batch, time, 4, width).transpose(1, 2)


@pytest.fixture(scope="module")
def compilations() -> Iterator[list[Any]]:
    """Everything that Inductor is asked to compile."""
    import torch._inductor as inductor

    asked: list[Any] = []
    original = inductor.standalone_compile

    def counted(*args: Any, **kwargs: Any) -> Any:
        asked.append(args)
        return original(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inductor, "standalone_compile", counted)
        yield asked


@pytest.fixture(scope="module")
def turned(traced: Any, compilations: list[Any]) -> tuple[Region, CpuRegion, int]:
    """Transposed, sliced, and broadcast inputs; batch and time open."""
    q, cos = _heads(2, 9, 16), torch.randn(1, 1, 9, 8)
    example = traced(lambda a, b, c: a * b + c.sigmoid(), q[..., :8], cos, q[..., 8:])
    region = replace(example.region, open_dims=(0, 2))
    before = len(compilations)
    return region, compile_region(region), len(compilations) - before


@pytest.fixture(scope="module")
def rows(traced: Any) -> tuple[Region, CpuRegion]:
    """A softmax and a maximum over rows of open length."""

    def function(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        scores = x * 0.125 + mask
        return scores.softmax(-1), scores.amax(-1, keepdim=True)

    example = traced(function, torch.randn(2, 4, 9, 9), torch.randn(2, 1, 1, 9))
    region = replace(example.region, open_dims=(0, 2, 3))
    return region, compile_region(region)


@pytest.mark.parametrize(("batch", "time"), SIZES)
def test_one_artifact_serves_every_size(batch: int, time: int, turned: Any) -> None:
    region, compiled, count = turned
    assert compiled.compiled, compiled.reason
    assert count == 1
    q, cos = _heads(batch, time, 16), torch.randn(1, 1, time, 8)
    given = (q[..., :8], cos, q[..., 8:])
    (out,) = compiled.run(*given)
    (wanted,) = evaluate(region, given)
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-6)
    assert out.stride() == wanted.stride()


def test_ten_sizes_are_compiled_for_once(turned: Any, compilations: list[Any]) -> None:
    _, compiled, _ = turned
    before = len(compilations)
    for batch, time in SIZES:
        q = _heads(batch, time, 16)
        compiled.run(q[..., :8], torch.randn(1, 1, time, 8), q[..., 8:])
    assert len(compilations) == before


@pytest.mark.parametrize(("batch", "length"), [size for size in SIZES if size[1]])
def test_rows_of_open_length(batch: int, length: int, rows: Any) -> None:
    region, compiled = rows
    assert compiled.compiled, compiled.reason
    given = (torch.randn(batch, 4, 3, length), torch.randn(batch, 1, 1, length))
    for out, wanted in zip(compiled.run(*given), evaluate(region, given), strict=True):
        torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-6)


def test_a_row_without_elements_has_no_maximum(rows: Any) -> None:
    with pytest.raises(IndexError, match="zero size"):
        rows[1].run(torch.randn(2, 4, 3, 0), torch.randn(2, 1, 1, 0))


def test_a_norm_of_fixed_rows_under_open_dimensions(traced: Any) -> None:
    def function(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return layer_norm(x + y, (17,), weight, None, 1e-5)

    example = traced(function, torch.randn(2, 5, 17), torch.randn(2, 5, 17), torch.randn(17))
    region = replace(example.region, open_dims=(0, 1))
    compiled = compile_region(region)
    assert compiled.compiled, compiled.reason
    for batch, time in ((2, 5), (1, 1), (3, 7), (17, 17), (0, 2)):
        given = (torch.randn(batch, time, 17), torch.randn(batch, time, 17), torch.randn(17))
        (out,), (wanted,) = compiled.run(*given), evaluate(region, given)
        torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-6)


def test_an_input_that_may_be_overwritten_is(traced: Any) -> None:
    example = traced(lambda x, y: x.relu() * y, torch.randn(3, 4, 5), torch.randn(3, 4, 5))
    region = replace(example.region, open_dims=(0, 1))
    compiled = compile_region(region, reuse=0)
    assert compiled.compiled, compiled.reason
    for shape in ((3, 4, 5), (1, 7, 5), (6, 1, 5), (0, 2, 5)):
        x, y = torch.randn(shape), torch.randn(shape)
        wanted = x.relu() * y
        (out,) = compiled.run(x, y)
        assert out is x
        torch.testing.assert_close(x, wanted)
