"""Emitted text, run in the interpreter, over memory layouts, broadcasts and sizes."""

import random
from typing import Any

import pytest
import torch
from torch.nn.functional import gelu, layer_norm

from fusion_kernels.builder import Builder
from fusion_kernels.emit.config import KernelConfig, candidates
from fusion_kernels.emit.layout import NotEmitted, layout_of
from fusion_kernels.evaluate import evaluate
from fusion_kernels.ir import Output, Window

FUZZED = 240


@pytest.fixture(autouse=True)
def in_bounds(memory_watch):
    """No kernel of this file reads or writes past its tensors, or writes an element twice."""
    yield
    assert (memory_watch.strays, memory_watch.repeats) == (0, 0)


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def spread(values: torch.Tensor) -> torch.Tensor:
    """The same values two elements apart, NaN between them."""
    wide = values.new_full((*values.shape[:-1], 2 * values.shape[-1]), torch.nan)
    wide[..., ::2] = values
    return wide[..., ::2]


def transposed(values: torch.Tensor) -> torch.Tensor:
    return values.transpose(-1, -2).contiguous().transpose(-1, -2)


def mixed(x, y):
    return gelu(x + y) * y


def several(x, y):
    total = x + y
    return total, gelu(total) * x


FULL = randn(2, 3, 17)
LAYOUTS = {
    "flat": (FULL, randn(2, 3, 17, seed=1)),
    "row vector": (FULL, randn(17, seed=1)),
    "row vector first": (randn(17, seed=1), FULL),
    "column": (FULL, randn(2, 3, 1, seed=1)),
    "a value a batch": (FULL, randn(2, 1, 1, seed=1)),
    "one of a batch": (FULL, randn(1, 3, 17, seed=1)),
    "middle left out": (FULL, randn(2, 1, 17, seed=1)),
    "middle only": (FULL, randn(3, 1, seed=1)),
    "a number": (FULL, torch.tensor(0.75)),
    "a number of full rank": (FULL, torch.full((1, 1, 1), 0.75)),
    "both broadcast": (randn(2, 1, 17), randn(3, 1, seed=1)),
    "mask over heads": (randn(2, 3, 5, 5), randn(2, 1, 1, 5, seed=1)),
    "mask over heads, rows": (randn(2, 3, 5, 5), randn(2, 1, 5, 5, seed=1)),
    "heads only": (randn(2, 3, 5, 5), randn(3, 1, 1, seed=1)),
    "every second": (spread(FULL), randn(2, 3, 17, seed=1)),
    "every second row vector": (FULL, spread(randn(17, seed=1))),
    "transposed": (transposed(FULL), randn(2, 3, 17, seed=1)),
    "transposed alone": (transposed(FULL), transposed(randn(2, 3, 17, seed=1))),
    "expanded": (FULL, randn(3, 17, seed=1).expand(2, 3, 17)),
    "expanded inside": (FULL, randn(2, 3, 1, seed=1).expand(2, 3, 17)),
    "offset": (randn(103)[1:].view(2, 3, 17), FULL),
    "channels last": tuple(
        randn(2, 3, 4, 5, seed=s).to(memory_format=torch.channels_last) for s in (0, 1)
    ),
    "channels last, one value a channel": (
        randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        randn(3, 1, 1, seed=1),
    ),
    "channels last and first": (
        randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        randn(2, 3, 4, 5, seed=1),
    ),
    "no dimensions": (torch.tensor(1.5), torch.tensor(-0.5)),
    "one element": (randn(1, 1, 1), randn(1, seed=1)),
    "ones all around": (randn(1, 5, 1, 7, 1), randn(1, 1, 7, 1, seed=1)),
    "one row": (randn(1, 257), randn(257, seed=1)),
    "one column": (randn(257, 1), randn(257, 1, seed=1)),
    "columns of one": (randn(5, 1), randn(1, 1, seed=1)),
    "ragged": (randn(3, 257), randn(257, seed=1)),
    "longer than a block": (randn(2, 2600), randn(2600, seed=1)),
    "nothing": (randn(0, 17), randn(17, seed=1)),
    "nothing inside": (randn(3, 0), randn(3, 1, seed=1)),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("function", [mixed, several])
def test_layout_is_right(name, function, traced, assert_right) -> None:
    assert_right(traced(function, *LAYOUTS[name]))


@pytest.mark.parametrize("name", [name for name in LAYOUTS if "nothing" not in name])
def test_every_configuration_gives_the_same(name, traced, kernel_run) -> None:
    example = traced(mixed, *LAYOUTS[name])
    expected = evaluate(example.region, example.inputs)
    for config in candidates(example.region, layout_of(example.region)):
        outs = kernel_run(example.region, example.inputs, config)
        assert torch.allclose(outs[0], expected[0], rtol=1e-5, atol=1e-6), config


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_result_lies_in_memory_as_eager_s_does(name, traced, kernel_run) -> None:
    example = traced(mixed, *LAYOUTS[name])
    eager = example.operators(*example.inputs)[0]
    for out in (
        evaluate(example.region, example.inputs)[0],
        kernel_run(example.region, example.inputs)[0],
    ):
        assert out.shape == eager.shape
        assert not out.numel() or _walk(out) == _walk(eager)


def _walk(tensor: torch.Tensor) -> list[tuple[int, int]]:
    """Size and stride of the dimensions along which a tensor extends."""
    return [(n, s) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n != 1]


GENERAL = [name for name, tensors in LAYOUTS.items() if tensors[0].dim() and len(tensors[0]) > 1]


@pytest.mark.parametrize("leading", [0, 1, 7])
@pytest.mark.parametrize("name", GENERAL)
def test_the_launcher_takes_another_leading_size(name, leading, traced, assert_right) -> None:
    example = traced(mixed, *LAYOUTS[name])
    rank, size = len(example.region.shape), example.region.shape[0]
    other = [
        randn(leading, *t.shape[1:], seed=7) if t.dim() == rank and len(t) == size else t
        for t in LAYOUTS[name]
    ]
    assert_right(example, *other)


@pytest.mark.parametrize("name", GENERAL)
def test_the_launcher_takes_other_strides(name, traced, assert_right) -> None:
    """Strided at the capture or dense, the tensors of a later call may lie otherwise."""
    example = traced(mixed, *LAYOUTS[name])
    for relaid in (spread, transposed, torch.Tensor.contiguous):
        others = [
            relaid(t.clone()) if t.dim() > 1 or (t.dim() and relaid is spread) else t
            for t in LAYOUTS[name]
        ]
        assert_right(example, *others)


@pytest.mark.parametrize("cols", [1, 100, 256])
def test_the_launcher_takes_another_row_within_its_block(cols, traced, assert_right) -> None:
    example = traced(lambda x, y: x * y + y, randn(4, 200), randn(200, seed=1))
    assert_right(example, randn(4, cols), randn(cols, seed=1))


NORMS = {
    "row vectors": ((6, 17), (17,), (6, 17)),
    "batches": ((2, 3, 257), (257,), (2, 3, 257)),
    "one row": ((1, 17), (17,), (1, 17)),
    "rows of one": ((5, 1), (1,), (5, 1)),
    "two dimensions": ((4, 3, 5), (3, 5), (4, 3, 5)),
    "two dimensions, all": ((3, 5), (3, 5), (3, 5)),
    "residual of one batch": ((2, 3, 17), (17,), (1, 3, 17)),
    "residual is a column": ((2, 3, 17), (17,), (2, 3, 1)),
    "residual is a number": ((2, 3, 17), (17,), ()),
    "no rows": ((0, 17), (17,), (0, 17)),
    "block of 4096": ((2, 2100), (2100,), (2, 2100)),
}


def normed(row: tuple[int, ...]) -> Any:
    def function(x, y, z, u):
        total = x + y
        return total, layer_norm(total, row, z, u, 1e-5)

    return function


@pytest.mark.parametrize("name", NORMS)
def test_layer_norm_is_right(name, traced, assert_right) -> None:
    shape, row, residual = NORMS[name]
    tensors = (randn(*shape), randn(*residual, seed=1), randn(*row, seed=2), randn(*row, seed=3))
    assert_right(traced(normed(row), *tensors))


@pytest.mark.parametrize(
    "name", ["row vectors", "one row", "two dimensions", "residual is a column"]
)
def test_layer_norm_is_right_in_every_configuration(name, traced, kernel_run) -> None:
    shape, row, residual = NORMS[name]
    tensors = (randn(*shape), randn(*residual, seed=1), randn(*row, seed=2), randn(*row, seed=3))
    example = traced(normed(row), *tensors)
    expected = evaluate(example.region, example.inputs)
    for config in candidates(example.region, layout_of(example.region)):
        outs = kernel_run(example.region, example.inputs, config)
        assert all(map(torch.allclose, outs, expected)), config


def test_layer_norm_of_strided_rows_is_right(traced, assert_right) -> None:
    row = (randn(17, seed=2), randn(17, seed=3))
    assert_right(traced(normed((17,)), spread(randn(4, 17)), transposed(randn(4, 17)), *row))


def test_layer_norm_keeps_large_means_and_constant_rows(traced, assert_right) -> None:
    row = (torch.ones(257), torch.zeros(257))
    shifted = randn(3, 257) + 1000.0
    assert_right(traced(normed((257,)), shifted, torch.zeros(3, 257), *row))
    assert_right(traced(normed((257,)), torch.full((3, 257), 1000.1), torch.zeros(3, 257), *row))


def test_two_norms_in_one_kernel_keep_apart(traced, assert_right) -> None:
    def function(x, y):
        return layer_norm(layer_norm(x, (17,), y) * 2.0 + 3.0, (17,), None, y)

    assert_right(traced(function, randn(4, 17), randn(17, seed=1)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [1, 5, 0])
def test_storage_is_rounded_once(dtype, rows, traced, assert_right) -> None:
    tensors = [randn(rows, 257, seed=s).to(dtype) for s in (0, 1)]
    vectors = [randn(257, seed=s).to(dtype) for s in (2, 3)]
    assert_right(traced(normed((257,)), *tensors, *vectors))
    assert_right(traced(several, *tensors))


def test_integers_and_booleans_are_read_and_written(traced, assert_right) -> None:
    def function(x, y, z):
        count = x * 2 - y
        return count, (count > 3) & z, count.to(torch.int32), torch.ops.aten.where(z, count, x)

    whole = torch.arange(-20, 31).view(3, 17)
    chosen = whole % 3 == 0
    assert_right(traced(function, whole, torch.arange(17, dtype=torch.int32), chosen))


def test_an_input_may_be_an_output_and_is_copied(traced, kernel_run, assert_right) -> None:
    example = traced(lambda x: (x.clone(), x + 1.0), FULL)
    assert_right(example)
    for outs in (evaluate(example.region, (FULL,)), kernel_run(example.region, (FULL,))):
        assert outs[0].data_ptr() != FULL.data_ptr()


def refused(region) -> str:
    with pytest.raises(NotEmitted) as caught:
        candidates(region, layout_of(region))
    return str(caught.value)


def test_the_longest_row_is_not(traced, kernel_source) -> None:
    example = traced(lambda x: layer_norm(x, (16384,)), torch.empty(2, 16384))
    assert kernel_source(example.region).config.block_size == 16384


def test_outputs_in_different_orders(traced, assert_right) -> None:
    x = randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert_right(traced(lambda x, y: (x + 1.0, y + 1.0, x + y), x, randn(2, 3, 4, 5)))


@pytest.mark.parametrize("rows", [1, 4])
def test_a_row_across_memory(rows, kernel_run) -> None:
    made = Builder(1, 3)
    value = made.input("x", "float32", (4, 3), (1, 4), 2)
    made.at("norm", "norm", "float32")
    result = made.apply("layer_norm", value, None, None, 1e-5)
    region = made.finish("norm", (4, 3), [Output(result, "float32", (4, 3), (1, 4))])
    x = transposed(randn(4, 3))
    (out,) = kernel_run(region, (x,), KernelConfig(4, 4, rows))
    assert out.stride() == (1, 4)
    torch.testing.assert_close(out, layer_norm(x, (3,)))


def test_an_output_with_gaps_is_refused() -> None:
    made = Builder()
    value = made.input("x", "float32", (4, 3), (3, 1), 2)
    region = made.finish("copy", (4, 3), [Output(value, "float32", (4, 3), (6, 1))])
    assert refused(region) == "an output has gaps in memory"


@pytest.mark.parametrize("lay", [spread, transposed])
def test_a_row_of_two_dimensions_that_is_strided(lay, traced, assert_right) -> None:
    weight = randn(3, 1)
    example = traced(lambda x, w: layer_norm(x, (3, 5)) * w, lay(randn(4, 3, 5)), weight)
    assert_right(example)


@pytest.mark.parametrize("shape", [(257, 3), (1, 5), (2, 3, 4), (6, 1), (1, 1)])
def test_one_value_a_row_beside_a_whole_output(shape, traced, assert_right) -> None:
    def function(x):
        mean = x.mean(-1, keepdim=True)
        return mean, x - mean, (mean * 2.0).exp()

    assert_right(traced(function, randn(*shape)))


@pytest.mark.parametrize("shape", [(7, 33), (2, 3, 5)])
def test_values_of_rows_alone(shape, traced, assert_right) -> None:
    assert_right(traced(lambda x: x.sum(-1, keepdim=True), randn(*shape)))
    assert_right(traced(lambda x: x.amax((-1, -2), keepdim=True).tanh(), randn(*shape)))


def test_a_row_of_no_elements_has_a_sum(traced, kernel_run) -> None:
    example = traced(lambda x: x.sum(-1, keepdim=True) + 1.0, randn(4, 5))
    (out,) = kernel_run(example.region, (randn(4, 0),))
    assert torch.equal(out, torch.ones(4, 1))


def test_rows_of_the_whole_tensor(traced, assert_right) -> None:
    assert_right(traced(lambda x: x - x.mean((0, 1), keepdim=True), randn(9, 31)))


def _fuzz_tensor(r: random.Random, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Values of `dtype` in a memory layout drawn for them."""

    def values(*size: int) -> torch.Tensor:
        drawn = randn(*size, seed=r.randrange(1 << 30))
        return drawn.to(dtype) if dtype.is_floating_point else (drawn * 3).to(dtype)

    kind = r.randrange(6)
    if kind == 0 and len(shape) > 1:
        order = r.sample(range(len(shape)), len(shape))
        back = [order.index(d) for d in range(len(shape))]
        return values(*(shape[d] for d in order)).permute(back)
    if kind == 1 and shape:
        return values(*shape[:-1], 2 * shape[-1] + 1)[..., 1::2]
    if kind == 2 and shape:
        return values(*(1 if r.random() < 0.4 else n for n in shape)).expand(shape)
    if kind == 3 and len(shape) == 4:
        return values(*shape).to(memory_format=torch.channels_last)
    return values(*shape)


def _fuzz_function(r: random.Random, arity: int) -> Any:
    """A chain of `arity` operators; the last few values of full shape are outputs."""
    choices, outputs = [r.randrange(5) for _ in range(arity)], r.choice([1, 1, 2, 3])

    def function(*tensors: torch.Tensor) -> Any:
        value, kept = tensors[0], []
        for choice, tensor in zip(choices, tensors[1:], strict=True):
            if choice == 0:
                value = value + tensor
            elif choice == 1:
                value = value * tensor
            elif choice == 2 and tensor.is_floating_point():
                value = torch.maximum(value, torch.tanh(tensor))
            elif choice == 3:
                value = (value * 0.5).masked_fill(tensor == 1, -2.0)
            else:
                value = value - torch.sigmoid(tensor)
            kept.append(value)
        return tuple(item for item in kept if item.shape == value.shape)[-outputs:]

    return function


def _fuzz_inputs(r: random.Random) -> list[torch.Tensor]:
    shape = [r.choice([1, 2, 3, 4, 5, 7, 17]) for _ in range(r.randrange(5))]
    dtypes = [torch.float32] * 3 + [torch.bfloat16, torch.int64, torch.int32]
    tensors = [_fuzz_tensor(r, tuple(shape), torch.float32)]
    for _ in range(r.randrange(1, 5)):
        own = [1 if r.random() < 0.3 else n for n in shape[r.randrange(len(shape) + 1) :]]
        tensors.append(_fuzz_tensor(r, tuple(own), r.choice(dtypes)))
    r.shuffle(tensors)
    first = tensors[0]
    return [first if first.is_floating_point() else first.float(), *tensors[1:]]


@pytest.mark.parametrize("block", range(12))
def test_random_regions_are_right(block, traced, kernel_run) -> None:
    """Shapes, broadcasts, permutations, gaps and dtypes at random, at the captured leading size
    and at others, in other layouts than the captured ones. Chains may cancel, so that elements
    are compared and rows are not.
    """

    def assert_right(example: Any, *tensors: torch.Tensor) -> None:
        inputs = example.ordered(*tensors)
        for outs in (evaluate(example.region, inputs), kernel_run(example.region, inputs)):
            for out, exact in zip(outs, example.exact(*inputs), strict=True):
                step = 1e-5 if out.dtype is torch.float32 else torch.finfo(out.dtype).eps
                torch.testing.assert_close(out, exact.to(out.dtype), rtol=step, atol=1e-5)

    done = 0
    for seed in range(block * FUZZED // 12, (block + 1) * FUZZED // 12):
        r = random.Random(seed)
        tensors = _fuzz_inputs(r)
        example = traced(_fuzz_function(r, len(tensors) - 1), *tensors)
        try:
            layout_of(example.region)
        except NotEmitted:
            continue
        assert_right(example, *tensors)
        done += 1
        shape = example.region.shape
        for leading in (0, 1, 5) if shape and shape[0] > 1 else ():
            assert_right(example, *_resized(r, tensors, shape, leading))
    assert done >= FUZZED // 12 * 0.8


def _resized(
    r: random.Random, tensors: list[torch.Tensor], shape: tuple[int, ...], leading: int
) -> list[torch.Tensor]:
    sizes = [
        (leading, *t.shape[1:]) if t.dim() == len(shape) and len(t) > 1 else tuple(t.shape)
        for t in tensors
    ]
    return [_fuzz_tensor(r, size, t.dtype) for size, t in zip(sizes, tensors, strict=True)]


@pytest.mark.parametrize("config", [None, KernelConfig(4, 4, 8), KernelConfig(8, 4, 1)])
@pytest.mark.parametrize("lay", [torch.clone, transposed, spread])
def test_pieces_side_by_side(lay, config, kernel_run) -> None:
    """Each piece is read in its own stretch alone, wherever it lies in memory."""
    made = Builder()
    first = made.input(
        "first", "float32", (3, 4, 6), lay(randn(3, 4, 6)).stride(), 3, Window(-1, 0, 6)
    )
    second = made.input("second", "float32", (1, 4, 5), (0, 5, 1), 3, Window(-1, 6, 11))
    scale = made.input("scale", "float32", (1, 1, 11), (0, 0, 1), 1)
    made.at("cat", "cat", "float32")
    joined = made.cat(-1, 0, [(made.apply("neg", first), 6), (second, 11)])
    result = made.apply("mul", joined, scale)
    strides = (44, 11, 1)
    region = made.finish("pieces", (3, 4, 11), [Output(result, "float32", (3, 4, 11), strides)])
    tensors = (lay(randn(3, 4, 6)), randn(1, 4, 5, seed=1), randn(11, seed=2))
    wanted = torch.cat((-tensors[0], tensors[1].expand(3, 4, 5)), -1) * tensors[2]
    (out,) = kernel_run(region, tensors, config)
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(evaluate(region, tensors)[0], wanted)


def test_a_leading_dimension_that_no_input_has(kernel_run) -> None:
    """The output has it all the same: views around the kernel count on the region's rank."""
    made = Builder()
    made.at("add", "add", "float32")
    x = made.input("x", "float32", (1, 4, 6), (0, 6, 1), 2)
    y = made.input("y", "float32", (1, 1, 6), (0, 0, 1), 1)
    strides = (24, 6, 1)
    total = made.apply("add", x, y)
    region = made.finish("short", (1, 4, 6), [Output(total, "float32", (1, 4, 6), strides)])
    tensors = (randn(4, 6), randn(6, seed=1))
    (out,) = kernel_run(region, tensors)
    assert out.shape == (1, 4, 6)
    torch.testing.assert_close(out, evaluate(region, tensors)[0])
