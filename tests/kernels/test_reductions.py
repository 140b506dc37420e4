"""Every reduction of the table against aten in float64, by torch and as Triton text."""

from typing import Any

import pytest
import torch

from fusion_kernels.builder import NotLowered
from fusion_kernels.emit.config import KernelConfig
from fusion_kernels.lowering import POINTWISE
from fusion_kernels.reductions import REDUCTIONS

NAN, INF = float("nan"), float("inf")
FLOATING = (torch.float32, torch.bfloat16, torch.float16)


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator, dtype=torch.float64) * 3
    return values.to(dtype)


def special(*values: float) -> torch.Tensor:
    """Rows of 5 that hold these values among ordinary ones, one row all of the first."""
    rows = drawn(len(values) + 2, 5)
    for row, value in enumerate(values):
        rows[row, row % 5] = value
    rows[len(values)] = values[0]
    return rows


WHOLE, FLAGS = drawn(6, 17).round().to(torch.int64), drawn(6, 17) > 0.5
FLAGS[0], FLAGS[1] = True, False
ODD, LONG, CUBE = drawn(7, 33), drawn(2, 257), drawn(3, 5, 7)
STRANGE = special(INF, -INF, NAN)
FLOATS = [ODD, LONG, CUBE, STRANGE, drawn(7, 33, dtype=torch.bfloat16), drawn(4, 1)]
VECTOR, GROUPED = drawn(33, seed=5), drawn(2, 6, 5, 3)
SMALL = drawn(4, 9).tanh() + 1.5

# Both ends of each dtype, and rows of one sign.
NARROW = [(WHOLE * 64).to(torch.uint8), (WHOLE * 64).to(torch.int8), (-WHOLE.abs()).to(torch.int16)]


def kept(x: torch.Tensor, **more: Any) -> tuple[Any, ...]:
    return (x, [-1], True, more)


def calls(*positional: Any, named: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
    return [(x, *positional, named or {}) for x in FLOATS]


SAMPLES: dict[str, list[tuple[Any, ...]]] = {
    "aten.layer_norm.default": [
        (ODD, [33], VECTOR, VECTOR, 1e-5, {}),
        (ODD, [33], None, None, 1e-12, {}),
        (ODD, [33], VECTOR, {}),
        (CUBE, [5, 7], drawn(5, 7), drawn(5, 7, seed=4), 1e-5, {}),
        (ODD.bfloat16(), [33], VECTOR.bfloat16(), VECTOR.bfloat16(), 1e-5, {}),
    ],
    "aten.rms_norm.default": [
        (ODD, [33], VECTOR, 1e-6, {}),
        (ODD, [33], {}),
        (ODD.bfloat16(), [33], {}),
        # Values that are small beside the eps which is added where none is given.
        *(((ODD * 1e-4).to(dtype), [33], {}) for dtype in FLOATING),
        (CUBE, [5, 7], drawn(5, 7), None, {}),
    ],
    "aten.group_norm.default": [
        (CUBE, 1, {}),
        (GROUPED, 3, VECTOR[:6], VECTOR[6:12], 1e-5, {}),
        (GROUPED, 6, VECTOR[:6], {}),
    ],
    "aten.softmax.int": [*calls(-1), (CUBE, 1, {}), (ODD, 0, {})],
    "aten._softmax.default": calls(-1, False),
    "aten.log_softmax.int": calls(-1),
    "aten._log_softmax.default": calls(1, False)[:2],
    "aten.logsumexp.default": calls([-1], True),
    "aten.sum.default": [(ODD, {}), (WHOLE, {})],
    "aten.nansum.default": [(STRANGE, [-1], True, {}), (CUBE, [0], {})],
    "aten.nanmean.default": [(STRANGE[2:], [-1], True, {})],
    "aten.count_nonzero.default": [(WHOLE, {}), (FLAGS, {})],
    "aten.count_nonzero.dim_IntList": [(WHOLE, [0], {}), (ODD, [-1], {})],
    "aten.prod.default": [(SMALL, {})],
    "aten.prod.dim_int": [(SMALL, -1, True, {}), (SMALL, 0, {}), (WHOLE % 3, 1, {})],
    "aten.sum.dim_IntList": [
        *calls([-1], True),
        kept(WHOLE),
        kept(FLAGS),
        (CUBE, [1, 2], True, {}),
    ],
    "aten.mean.default": [(CUBE, {})],
    "aten.mean.dim": [
        *calls([-1], True),
        (CUBE, [2, 1], True, {}),
        (CUBE, [0, 1, 2], True, {}),
        (CUBE, [0, 2], {}),
        (CUBE, [1], True, {}),
    ],
    "aten.amax.default": [
        *(*calls([-1], True), kept(WHOLE), kept(WHOLE.int()), kept(FLAGS)),
        *(kept(x) for x in NARROW),
    ],
    "aten.amin.default": [
        *(*calls([-1], True), kept(WHOLE), kept(FLAGS), (CUBE, [1, 2], True, {})),
        *(kept(x) for x in NARROW),
    ],
    "aten.any.default": [(FLAGS, {}), (ODD, {})],
    "aten.any.dim": [(FLAGS, -1, True, {}), (WHOLE, 1, True, {}), (STRANGE, 1, True, {})],
    "aten.any.dims": [kept(FLAGS), (CUBE > 4, [1, 2], True, {})],
    "aten.all.default": [(FLAGS, {}), (ODD, {})],
    "aten.all.dim": [(FLAGS, -1, True, {}), (WHOLE, 1, True, {}), (STRANGE, 1, True, {})],
    "aten.all.dims": [kept(FLAGS), (CUBE > -4, [1, 2], True, {})],
    "aten.var.correction": [
        (x, [-1], {"correction": c, "keepdim": True})
        for x in (ODD, LONG, ODD + 100)
        for c in (0, 1)
    ],
    "aten.var.default": [(ODD, {})],
    "aten.std.default": [(ODD, {}), (ODD, False, {})],
    "aten.var.dim": [(ODD, [-1], True, True, {}), (LONG, [1], False, True, {})],
    "aten.std.dim": [(ODD, [-1], True, True, {}), (CUBE, [-1, -2], False, True, {})],
    "aten.std.correction": [(ODD, [-1], {"keepdim": True}), (LONG, [1], {"keepdim": True})],
    "aten.linalg_vector_norm.default": [
        (x, order, [-1], True, {}) for x in (ODD, LONG, ODD.bfloat16()) for order in (1, 2)
    ],
}


def overload(name: str) -> Any:
    namespace, operator, form = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), operator), form)


CASES = [
    pytest.param(name, sample, id=f"{name.split('.', 1)[1]}-{number}")
    for name, samples in sorted(SAMPLES.items())
    for number, sample in enumerate(samples)
]


def test_every_reduction_of_the_table_has_samples() -> None:
    assert set(SAMPLES) == set(REDUCTIONS)
    assert set(POINTWISE).isdisjoint(REDUCTIONS)


@pytest.mark.parametrize(("name", "sample"), CASES)
def test_reduction_is_aten_s(name, sample, traced_operator, assert_right) -> None:
    *args, kwargs = sample
    assert_right(traced_operator(overload(name), *args, **kwargs))


@pytest.mark.parametrize(("name", "sample"), CASES)
@pytest.mark.parametrize("block", [4, 16])
def test_a_row_in_several_blocks(name, sample, block, traced_operator, kernel_run, keeps_contract):
    *args, kwargs = sample
    example = traced_operator(overload(name), *args, **kwargs)
    read = example.lowered.arguments(example.inputs)
    outs = kernel_run(example.region, read, KernelConfig(block, 4, 1, looped=True))
    keeps_contract(example.lowered.returned(outs), example.exact(), example.output_dtypes)


@pytest.mark.parametrize("length", [1, 3, 46336, 131073])
def test_lengths_of_rows(length, traced, assert_right) -> None:
    """One value a row, a norm and a softmax of it, and both in one kernel."""

    def function(x, weight):
        normed = torch.nn.functional.layer_norm(x, (length,), weight)
        return x.amax(-1, keepdim=True), torch.softmax(normed, -1), normed * 2.0

    assert_right(traced(function, drawn(2, length), drawn(length, seed=1)))


def test_strided_rows_in_several_blocks(traced, kernel_run, keeps_contract) -> None:
    """Inputs across memory, one value a row read in, rows of two dimensions."""
    x, scale, shift = drawn(3, 7, 5).transpose(0, 2), drawn(5, 1, 1), drawn(7, 1)

    def function(x, scale, shift):
        total = (x * scale + shift).sum((1, 2), keepdim=True)
        return total * scale, x - total

    example = traced(function, x, scale, shift)
    outs = kernel_run(example.region, example.inputs, KernelConfig(8, 4, 1, looped=True))
    keeps_contract(outs, example.exact(), example.output_dtypes)


def test_rows_of_two_kinds_are_refused(traced) -> None:
    with pytest.raises(NotLowered, match="different dimensions"):
        traced(lambda x: x.mean(-1, keepdim=True) + x.mean((-1, -2), keepdim=True), CUBE)


def test_a_row_of_a_smaller_tensor_is_refused(traced) -> None:
    """The sum of [7, 1] over its last dimension counts each value once, in a region over 33."""
    with pytest.raises(NotLowered, match="a row of"):
        traced(lambda x, y: y.sum(-1, keepdim=True) + x, ODD, drawn(7, 1))


def test_a_variance_of_one_element_is_refused(traced) -> None:
    with pytest.raises(NotLowered, match="correction"):
        traced(lambda x: x.var(-1, keepdim=True), drawn(4, 1))


@pytest.mark.parametrize("dtype", FLOATING)
def test_add_and_rms_norm_written_out(dtype, traced, assert_right) -> None:
    """As Llama has it: the sum is a second output, the norm is taken in float32."""

    def function(x, residual, weight):
        total = x + residual
        wide = total.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return total, weight * normed.to(x.dtype)

    tensors = [drawn(6, 257, seed=n, dtype=dtype) for n in range(2)]
    assert_right(traced(function, *tensors, drawn(257, seed=3, dtype=dtype)))


def test_a_softmax_of_masked_scores(traced, assert_right) -> None:
    """A row that is masked throughout gives NaN, as in eager."""
    keep = drawn(2, 1, 9, 33) > 0
    keep[0, 0, 3] = False

    def function(scores, keep):
        return torch.softmax((scores * 0.125).masked_fill(~keep, float("-inf")), -1)

    assert_right(traced(function, drawn(2, 4, 9, 33), keep))
