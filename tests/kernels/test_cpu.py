"""Regions compiled for CPU: the same as run by torch, at every leading size and layout."""

import pytest
import torch
from torch.nn.functional import gelu, layer_norm

from fusion_kernels.cpu import compile_region
from fusion_kernels.evaluate import evaluate


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def strided(values: torch.Tensor) -> torch.Tensor:
    return values.repeat_interleave(2, dim=-1)[..., ::2]


def transposed(values: torch.Tensor) -> torch.Tensor:
    return values.transpose(-1, -2).contiguous().transpose(-1, -2)


@pytest.fixture(scope="module")
def pointwise(traced):
    """gelu(x + y) * y for x [4, 3, 17] and a row vector, with its compiled form."""
    example = traced(lambda x, y: gelu(x + y) * y, randn(4, 3, 17), randn(17, seed=1))
    return example.region, compile_region(example.region)


@pytest.fixture(scope="module")
def norm(traced):
    """Two outputs, the sum and its LayerNorm, in bfloat16."""
    tensors = [randn(*shape).bfloat16() for shape in ((4, 3, 17), (4, 3, 17), (17,), (17,))]
    example = traced(lambda x, y, z, u: (x + y, layer_norm(x + y, (17,), z, u, 1e-12)), *tensors)
    return example.region, compile_region(example.region)


@pytest.fixture(scope="module")
def reusing(traced):
    """relu(x) + y written over x, with the region compiled for it."""
    example = traced(lambda x, y: torch.relu(x) + y, randn(4, 17), randn(17, seed=1))
    return example.region, compile_region(example.region, reuse=0)


@pytest.mark.parametrize("leading", [4, 9, 1, 0])
@pytest.mark.parametrize("layout", [torch.clone, strided, transposed], ids=lambda f: f.__name__)
def test_pointwise_is_what_torch_gives(leading, layout, pointwise):
    region, compiled = pointwise
    assert compiled.compiled, compiled.reason
    tensors = (layout(randn(leading, 3, 17, seed=2)), randn(17, seed=3))
    (out,) = compiled.run(*tensors)
    torch.testing.assert_close(out, evaluate(region, tensors)[0], rtol=1e-5, atol=1e-6)
    assert out.is_contiguous()


@pytest.mark.parametrize("leading", [4, 9, 1, 0])
def test_a_norm_is_what_torch_gives(leading, norm):
    region, compiled = norm
    assert compiled.compiled, compiled.reason
    tensors = [randn(leading, 3, 17, seed=s).bfloat16() for s in (2, 3)]
    tensors += [randn(17, seed=s).bfloat16() for s in (4, 5)]
    for out, expected in zip(compiled.run(*tensors), evaluate(region, tensors), strict=True):
        torch.testing.assert_close(out, expected, rtol=2**-7, atol=1e-3)


def test_the_inputs_are_left_as_they_are(pointwise):
    x, y = randn(4, 3, 17), randn(17)
    before = x.clone(), y.clone()
    pointwise[1].run(x, y)
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])


def test_other_strides_than_captured_ones_are_right(traced):
    """Compiled for a transposed input, called with dense and with strided ones."""
    example = traced(lambda x: gelu(x) + 1.0, transposed(randn(4, 3, 17)))
    compiled = compile_region(example.region)
    assert compiled.compiled, compiled.reason
    for given in (transposed(randn(4, 3, 17)), randn(4, 3, 17), strided(randn(6, 3, 17))):
        (out,) = compiled.run(given)
        torch.testing.assert_close(out, gelu(given) + 1.0, rtol=1e-5, atol=1e-6)


def test_a_user_s_cast_is_kept(traced):
    """Inductor alone would drop the rounding to bfloat16 between two float32 operators."""
    example = traced(lambda x: x.to(torch.bfloat16).to(torch.float32) * 3.0, randn(8, 33))
    compiled = compile_region(example.region)
    assert compiled.compiled or "drops a cast" in compiled.reason
    x = randn(8, 33, seed=1)
    assert torch.equal(compiled.run(x)[0], x.bfloat16().float() * 3.0)


@pytest.mark.parametrize("shape", [(8, 8), (16, 16, 5), (4, 3, 4)])
@pytest.mark.parametrize("lay", [torch.clone, transposed])
def test_a_leading_size_that_equals_another_stays_open(shape, lay, traced):
    """Inductor takes equal sizes for one and would fix both."""
    weight = randn(shape[-1], seed=1)
    example = traced(lambda x, w: torch.tanh(x * w + 1), lay(randn(*shape)), weight)
    compiled = compile_region(example.region)
    assert compiled.compiled, compiled.reason
    for leading in (1, shape[0], shape[0] + 3, 0):
        x = lay(randn(leading, *shape[1:], seed=2))
        (out,) = compiled.run(x, weight)
        torch.testing.assert_close(out, torch.tanh(x * weight + 1))


def test_a_region_with_a_cast_is_not_compiled_where_inductor_would_drop_it(traced, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.12.1+cpu")
    with_cast = traced(lambda x: x.to(torch.bfloat16).to(torch.float32) * 3.0, randn(8, 33))
    compiled = compile_region(with_cast.region)
    assert not compiled.compiled
    assert "torch 2.12.1+cpu drops a cast" in compiled.reason
    x = randn(8, 33, seed=1)
    assert torch.equal(compiled.run(x)[0], x.bfloat16().float() * 3.0)


@pytest.mark.parametrize("leading", [4, 7, 1, 0])
def test_the_reusing_form_overwrites_its_input_and_returns_it(leading, reusing):
    _, compiled = reusing
    assert compiled.compiled, compiled.reason
    x, y = randn(leading, 17, seed=2), randn(17, seed=3)
    expected = torch.relu(x) + y
    (out,) = compiled.run(x, y)
    assert out is x
    torch.testing.assert_close(x, expected)


def test_the_reusing_form_writes_through_a_strided_input_too(reusing):
    x, y = strided(randn(4, 17, seed=2)), randn(17, seed=3)
    expected = torch.relu(x) + y
    (out,) = reusing[1].run(x, y)
    assert out is x
    torch.testing.assert_close(x, expected)


def test_without_a_compiler_the_region_runs_by_torch_and_says_why(traced, monkeypatch):
    import torch._inductor

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no working C++ compiler was found\nand a second line")

    monkeypatch.setattr(torch._inductor, "standalone_compile", fail)
    example = traced(lambda x, y: torch.relu(x) + y, randn(4, 17), randn(17, seed=1))
    compiled = compile_region(example.region)
    assert not compiled.compiled
    assert compiled.reason == "not compiled (RuntimeError: no working C++ compiler was found)"
    torch.testing.assert_close(compiled.run(*example.inputs), evaluate(*_pair(example)))
    reusing = compile_region(example.region, reuse=0)
    x = example.inputs[0].clone()
    assert reusing.run(x, example.inputs[1])[0] is x


def _pair(example):
    return example.region, example.inputs
