"""Rows whose length is open: one text, run at lengths from one element to several blocks, and a
compiled kernel for each power of two.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from fusion_kernels.compile import compile_ahead
from fusion_kernels.emit.config import candidates
from fusion_kernels.emit.layout import layout_of
from fusion_kernels.emit.source import KernelSource, Provenance, computed, emit
from fusion_kernels.load import interpreted, load_kernel
from fusion_kernels.tolerances import check

LENGTHS = (1, 2, 7, 16, 17, 257, 4096, 4097, 9001)


def _softmax(x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    scores = x * 0.125 + bias
    return scores.softmax(-1), scores.amax(-1, keepdim=True)


def _norm(x: Tensor, bias: Tensor) -> Tensor:
    return layer_norm(x + bias, x.shape[-1:])


@pytest.fixture(scope="module", params=[_softmax, _norm], ids=lambda f: f.__name__)
def emitted(request: Any, traced: Any) -> tuple[Any, KernelSource]:
    example = traced(request.param, torch.randn(3, 5, 48), torch.randn(48))
    region = replace(example.region, open_dims=(0, 2))
    return request.param, emit(region, Provenance("test"))


@pytest.mark.parametrize("length", LENGTHS)
def test_one_text_is_right_at_every_length(length: int, emitted: Any) -> None:
    function, source = emitted
    given = (torch.randn(2, 3, length), torch.randn(length))
    found = interpreted(source.text, source.name)(*given)
    wanted = function(*(tensor.double() for tensor in given))
    outs, exact = (x if isinstance(x, tuple) else (x,) for x in (found, wanted))
    for out, reference in zip(outs, exact, strict=True):
        assert all(result.passed for result in check(out, reference))


@pytest.mark.parametrize("shape", [(0, 3, 9), (2, 0, 9)])
def test_no_rows_give_empty_results(shape: tuple[int, ...], emitted: Any) -> None:
    function, source = emitted
    given = (torch.randn(shape), torch.randn(shape[-1]))
    found = interpreted(source.text, source.name)(*given)
    wanted = function(*given)
    outs, wants = (x if isinstance(x, tuple) else (x,) for x in (found, wanted))
    assert [out.shape for out in outs] == [want.shape for want in wants]


def test_the_block_is_the_power_of_two_that_holds_the_row(emitted: Any) -> None:
    _, source = emitted
    assert "block = min(triton.next_power_of_2(max(n_cols, 16)), BLOCK_SIZE)" in source.text
    assert "BLOCK_SIZE=block" in source.text
    assert "num_warps=warps" in source.text
    assert re.search(r"for start in range\(0, n_cols, BLOCK_SIZE\)", source.text)


def test_every_configuration_leaves_the_block_to_the_launcher(emitted: Any) -> None:
    region = emitted[1].region
    found = candidates(region, layout_of(region))
    assert found
    assert all(config.bucketed and config.looped for config in found)


def test_a_row_of_fixed_length_under_open_rows_is_one_block(traced: Any) -> None:
    region = traced(_norm, torch.randn(3, 5, 48), torch.randn(48)).region
    source = emit(replace(region, open_dims=(0, 1)), Provenance("test"))
    assert not source.config.bucketed
    assert "next_power_of_2" not in source.text


def test_open_dimensions_are_part_of_what_a_kernel_is_called(traced: Any) -> None:
    region = traced(_norm, torch.randn(3, 5, 48), torch.randn(48)).region
    opened = replace(region, open_dims=(0, 2))
    assert computed(region) != computed(opened)
    names = {emit(item, Provenance("test")).file_name for item in (region, opened)}
    assert len(names) == 2


@pytest.mark.parametrize(("block", "warps"), [(16, 1), (512, 2), (4096, 8)])
def test_a_bucket_compiles_without_spills(block: int, warps: int, emitted: Any) -> None:
    _, source = emitted
    kernel = load_kernel(source.text, source.name).kernels[f"{source.name}_kernel"]
    arguments = {**source.parameters, **source.constexprs, "BLOCK_SIZE": block}
    used = compile_ahead(kernel, arguments, target=("cuda", 90), num_warps=warps)
    assert not used.spills
