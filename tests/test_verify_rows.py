"""Kernels whose inputs float32 cannot serve in some rows: right ones stand, wrong ones do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from fusion_kernels.emit.source import Provenance, emit
from fusion_kernels.library import FusedOperator, define
from fusion_kernels.rules import RULES
from planner import verify
from planner.fusion.lowered import LoweredRegion
from planner.fusion.match import match_rules
from planner.fusion.plan import write_kernel
from planner.fusion.regions import find_regions

Kernel = Callable[..., Tensor]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LOG2_E = 1.4426950408889634
COLS = 33


@pytest.fixture(autouse=True)
def by_operation(uncompiled: Any) -> Iterator[None]:
    with uncompiled():
        yield


def _failed(
    form: Callable[..., Any], folder: Path, kernel: Kernel | None, *tensors: Tensor
) -> set[str]:
    """Measures that fail when the kernel is this, or the region's own text where it is None."""

    def targets(lowered: LoweredRegion, operator: FusedOperator, _: str) -> list[Any]:
        if kernel is None:
            return [right(lowered, operator, "cpu")[-1]]
        return [verify._Target("planted", kernel, "cpu", True)]

    module = make_fx(form, tracing_mode="fake", pre_dispatch=True)(*tensors)
    matches, _ = match_rules(module.graph, RULES)
    (plan,), _ = find_regions(module.graph, matches, lambda node: node.name)
    source = emit(plan.lowered.region, Provenance("this test"))
    operator = define(source, write_kernel(source, folder))
    right = verify._targets
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "_targets", targets)
        rows = verify.verify_region(plan.lowered, operator, "cpu", seed=0)
    return {row.measure for row in rows if not row.passed}


def _chain(x: Tensor, y: Tensor) -> Tensor:
    """Overflows in float32 above 88, and comes out finite up to some 150."""
    return torch.exp(x) * 1e-30 * y


def _right(x: Tensor, y: Tensor) -> Tensor:
    return (torch.exp2(x.float() * LOG2_E) * 1e-30 * y.float()).to(x.dtype)


def _pair(dtype: torch.dtype, rows: int = 12) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, COLS).to(dtype), torch.randn(rows, COLS).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kernel", [None, _right], ids=["interpreted", "another exponential"])
def test_an_exponential_that_overflows_as_eagers_does_stands(
    tmp_path: Path, dtype: torch.dtype, kernel: Kernel | None
) -> None:
    assert _failed(_chain, tmp_path, kernel, *_pair(dtype)) == set()


def _overflows_earlier(x: Tensor, y: Tensor) -> Tensor:
    return _right(x, y).masked_fill((x > 60) & (x < 88), torch.inf)


def _wrong_constant_where_it_overflows(x: Tensor, y: Tensor) -> Tensor:
    wrong = (torch.exp(x.float()) * 1.1e-30 * y.float()).to(x.dtype)
    return torch.where((x > 88).any(dim=1, keepdim=True), wrong, _right(x, y))


def _missing_factor_where_it_overflows(x: Tensor, y: Tensor) -> Tensor:
    wrong = (torch.exp(x.float()) * 1e-30).to(x.dtype)
    return torch.where((x > 88).any(dim=1, keepdim=True), wrong, _right(x, y))


def _lost_column_beside(x: Tensor, y: Tensor) -> Tensor:
    out = _right(x, y)
    out[~(x > 88).any(dim=1), -1:] *= 1 - 0.1 * (x.abs().max() > 88).to(x.dtype)
    return out


BUGS = (
    _overflows_earlier,
    _wrong_constant_where_it_overflows,
    _missing_factor_where_it_overflows,
    _lost_column_beside,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__.strip("_"))
def test_a_bug_that_shows_only_where_exponentials_overflow_is_caught(
    tmp_path: Path, dtype: torch.dtype, bug: Kernel
) -> None:
    assert _failed(_chain, tmp_path, bug, *_pair(dtype))


def _norm(x: Tensor, y: Tensor) -> Tensor:
    centered = x - x.mean(1, keepdim=True)
    return centered * torch.rsqrt((centered * centered).mean(1, keepdim=True) + 1e-5) * y


def _summed_from_the_end(x: Tensor, y: Tensor) -> Tensor:
    return _norm(x.flip(1), y.flip(1)).flip(1)


def test_sums_in_another_order_stand_where_float32_is_lucky_in_some_rows(tmp_path: Path) -> None:
    pair = _pair(torch.float32, 400)
    assert _failed(_norm, tmp_path, _summed_from_the_end, *pair) == set()

    def three_lines_off(x: Tensor, y: Tensor) -> Tensor:
        return _summed_from_the_end(x, y) * (1 + 3e-5 * (x.mean() < 100))

    assert _failed(_norm, tmp_path, three_lines_off, *pair) & {"element", "row"}
