"""Every operator of the table against ATen in float64: promotion and special values included."""

from typing import Any

import pytest
import torch

from fusion_kernels.builder import NotLowered
from fusion_kernels.lowering import POINTWISE
from fusion_kernels.reductions import REDUCTIONS

aten = torch.ops.aten
INF, NAN = float("inf"), float("nan")
SPECIAL = (NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -2.5, 3.0, 1e-30, 1e20, -1e20)


def floats(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal values of some spread, the special ones among them where there is room."""
    generator = torch.Generator().manual_seed(seed)
    values = 3 * torch.randn(shape, generator=generator, dtype=torch.float64)
    if values.numel() > 2 * len(SPECIAL):
        order = torch.randperm(values.numel(), generator=generator)[: len(SPECIAL)]
        values.view(-1)[order] = torch.tensor(SPECIAL, dtype=torch.float64)
    return values.to(dtype)


def positive(*shape: int, seed: int = 0) -> torch.Tensor:
    values = floats(*shape, seed=seed).abs()
    return torch.where(values.isfinite(), values, 2.0).clamp(1e-6, 1e6)


def integers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-9, 10, shape, generator=generator).to(dtype)


def booleans(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) > 0.5


X, Y, ROW = floats(5, 17), floats(5, 17, seed=1), floats(17, seed=2)
HALF, BRAIN = floats(5, 17, dtype=torch.float16), floats(5, 17, dtype=torch.bfloat16)
I64, I32 = integers(5, 17), integers(5, 17, seed=1, dtype=torch.int32)
B1, B2 = booleans(5, 17), booleans(5, 17, seed=1)
SCALAR, WHOLE = torch.tensor(1.25), torch.tensor(3)

UNARY = [(X,), (HALF,), (BRAIN,), (I64,), (B1,)]
FLOATING_ONLY = [(X,), (HALF,), (BRAIN,)]
NUMERIC = [(X,), (BRAIN,), (I64,), (I32,)]
SIGNED = [
    *((X, Y), (X, ROW), (X, SCALAR), (X, HALF), (HALF, BRAIN), (BRAIN, ROW), (X, I64)),
    *((I32, BRAIN), (I64, I32), (I32, I64), (I32, WHOLE), (WHOLE, I32), (I32, SCALAR)),
]
MIXED = [*SIGNED, (X, B1), (I64, B1)]
NUMBERS = [(X, 0.3), (X, 2), (BRAIN, -1.5), (I64, 3), (I32, 2.5), (X, INF), (X, True)]
SCALED = [(X, Y, {"alpha": 0.5}), (I64, I32, {"alpha": 3}), (X, 2, {"alpha": 3})]
COMPARED = [(X, Y), (X, ROW), (X, SCALAR), (HALF, X), (I64, I32), (I64, X), (B1, B2), (B1, I64)]
COMPARED_NUMBERS = [
    *((X, 0.5), (X, 1), (I64, 2.5), (I64, 3), (I32, 0.0), (B1, 0), (B1, 1), (B1, 2), (B1, True)),
    *((BRAIN, 0.5), (X, INF), (X, NAN)),
]
LOGICAL = [(B1, B2), (B1, booleans(17)), (B1, torch.tensor(True))]

SAMPLES: dict[str, list[tuple[Any, ...]]] = {
    "aten.add.Tensor": [
        *MIXED,
        *SCALED,
        *((B1, 1), (B1, 0.5), (B1, B2, {"alpha": False}), (B1, B2, {"alpha": True})),
        *((X, I64.to(torch.uint8), {"alpha": -3}), (I64, I64.to(torch.uint8), {"alpha": -3})),
    ],
    "aten.add.Scalar": [*NUMBERS, (X, 2, 3), (B1, 2)],
    "aten.sub.Tensor": [*SIGNED, *SCALED, (X, I64.to(torch.uint8), {"alpha": 3})],
    "aten.sub.Scalar": [*NUMBERS[:-1], (X, 2.0, 0.25)],
    "aten.rsub.Tensor": [(X, Y), (I64, I32), (X, SCALAR), (X, Y, {"alpha": 2})],
    "aten.rsub.Scalar": [*NUMBERS[:-1], (X, 1, 3), (I64, 5, 2)],
    "aten.mul.Tensor": [*MIXED, (X, 3), (B1, 3), (X, -0.0)],
    "aten.mul.Scalar": [*NUMBERS, (B1, 2.5)],
    "aten.div.Tensor": [*MIXED, (B1, I64), (B1, B2), (X, 3), (I64, 4), (X, 0.0), (BRAIN, 3)],
    "aten.div.Scalar": [*NUMBERS, (I64, 0), (B1, 2)],
    "aten.pow.Tensor_Scalar": [
        *((X, 2), (X, 3), (X, 1), (X, -1), (X, 0.5), (X, -0.5), (BRAIN, 2), (I64, 2), (I32, 3)),
        *((I64, 2.0), (I64, 0.5), (I64, 1), (I64, 1.0), (integers(5, 17, seed=4) * 10**9, 2.0)),
    ],
    "aten.square.default": NUMERIC,
    "aten.reciprocal.default": [*UNARY],
    "aten.neg.default": NUMERIC,
    "aten.abs.default": NUMERIC,
    "aten.exp.default": UNARY,
    "aten.log.default": [*UNARY, (positive(3, 9),)],
    "aten.sqrt.default": UNARY,
    "aten.rsqrt.default": UNARY,
    "aten.erf.default": UNARY,
    "aten.tanh.default": UNARY,
    "aten.sigmoid.default": UNARY,
    "aten.sin.default": [(floats(3, 9),), (I64,), (B1,)],
    "aten.cos.default": [(floats(3, 9),), (I64,), (B1,)],
    "aten.floor.default": NUMERIC,
    "aten.ceil.default": NUMERIC,
    "aten.maximum.default": [(X, Y), (X, ROW), (I64, I32), (B1, B2), (X, I64), (BRAIN, Y)],
    "aten.minimum.default": [(X, Y), (X, ROW), (I64, I32), (B1, B2), (X, I64), (BRAIN, Y)],
    "aten.gelu.default": [*FLOATING_ONLY, *((*a, {"approximate": "tanh"}) for a in FLOATING_ONLY)],
    "aten.silu.default": FLOATING_ONLY,
    "aten.relu.default": NUMERIC,
    "aten.hardtanh.default": [*FLOATING_ONLY, (X, -0.25, 2.0), (X, 0, 6)],
    "aten.leaky_relu.default": [*FLOATING_ONLY, (X, 0.2), (X, -0.5), (X, 0.0), (X, 1)],
    "aten.clamp.default": [
        *((X, -1.0, 1.0), (X, 0.5), (X, None, 0.5), (X, 2.0, -2.0), (I64, -3, 4), (I64, 0.5)),
        *((I32, None, 2.5), (BRAIN, -0.3, INF), (X, -1, 1)),
    ],
    "aten.clamp_min.default": [(X, 0.0), (I64, -2), (I64, 0.5), (BRAIN, 1)],
    "aten.clamp_max.default": [(X, 0.0), (I64, -2), (I64, 0.5), (BRAIN, 1)],
    "aten.where.self": [
        *((B1, X, Y), (B1, X, ROW), (booleans(17), X, SCALAR), (B1, I64, I32), (B1, X, I64)),
        *((B1, B1, B2), (B1, B1, I64), (B1, HALF, BRAIN)),
    ],
    "aten.where.Scalar": [(B1, 0.0, -INF), (B1, 1, 0), (B1, 1, 0.5), (B1, True, False)],
    "aten.where.ScalarOther": [
        (B1, X, 0.5),
        (B1, I64, 2),
        (B1, I64, 0.5),
        (B1, B2, 1),
        (B1, X, NAN),
    ],
    "aten.where.ScalarSelf": [(B1, 0.5, X), (B1, 2, I64), (B1, 0.5, I64), (B1, -INF, BRAIN)],
    "aten.masked_fill.Scalar": [
        *((X, B1, -INF), (X, B1, torch.finfo(torch.float32).min), (BRAIN, B1, 0), (X, B1, NAN)),
        *((I64, B1, 2.7), (I64, B1, -1), (B2, B1, 3), (X, booleans(17), 1.5), (ROW, B1, 1)),
    ],
    "aten.masked_fill.Tensor": [
        (X, B1, SCALAR),
        (I64, B1, SCALAR),
        (X, B1, WHOLE),
        (B2, B1, WHOLE),
    ],
    "aten.logical_and.default": LOGICAL,
    "aten.logical_or.default": LOGICAL,
    "aten.logical_not.default": [(B1,)],
    "aten.bitwise_and.Tensor": LOGICAL,
    "aten.bitwise_or.Tensor": LOGICAL,
    "aten.bitwise_not.default": [(B1,)],
    "aten.__and__.Tensor": LOGICAL,
    "aten.__or__.Tensor": LOGICAL,
    "aten._to_copy.default": [
        (source, {"dtype": dtype})
        for source in (X.nan_to_num(2.0, 7.9, -7.9).clamp(-1e9, 1e9), BRAIN * 0.1, I64, I32, B1)
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.bool)
    ]
    + [
        (source, {"dtype": dtype})
        for source in (X.nan_to_num(2.0, 7.9, -7.9).clamp(-1e9, 1e9), I64, I32, B1)
        for dtype in (torch.int32, torch.int64)
    ]
    + [(X, {"dtype": torch.bfloat16}), (X, {"dtype": torch.bool}), (X,)],
    "aten.to.dtype": [
        (X, torch.bfloat16),
        (X, torch.float32),
        (BRAIN, torch.float32),
        (I64, torch.float32),
    ],
    "prims.convert_element_type.default": [
        (X, torch.float16),
        (I64, torch.bfloat16),
        (B1, torch.int64),
    ],
    "aten.clone.default": [*UNARY, (X, {"memory_format": torch.contiguous_format})],
}
for comparison in ("eq", "ne", "lt", "le", "gt", "ge"):
    SAMPLES[f"aten.{comparison}.Tensor"] = COMPARED
    SAMPLES[f"aten.{comparison}.Scalar"] = COMPARED_NUMBERS


def overload(name: str) -> Any:
    namespace, operator, form = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), operator), form)


def split(sample: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(sample[-1], dict):
        return sample[:-1], sample[-1]
    return sample, {}


def described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        short = str(value.dtype).removeprefix("torch.")
        return f"{short}{list(value.shape)}".replace(" ", "")
    return str(value).replace("torch.", "")


CASES = [
    pytest.param(name, sample, id=f"{name.split('.', 1)[1]}({', '.join(map(described, sample))})")
    for name, samples in sorted(SAMPLES.items())
    for sample in samples
]


@pytest.mark.parametrize(("name", "sample"), CASES)
def test_operator_is_aten_s(name, sample, traced_operator, assert_right) -> None:
    args, kwargs = split(sample)
    assert_right(traced_operator(overload(name), *args, **kwargs))


def test_every_name_of_the_table_is_an_operator() -> None:
    for name in POINTWISE:
        assert str(overload(name)) == name


@pytest.mark.parametrize("name", ["neg", "erf", "tanh", "sin", "sqrt", "floor", "ceil"])
def test_zero_keeps_its_sign(name, traced_operator, kernel_run) -> None:
    zeros = torch.tensor([0.0, -0.0])
    operator = overload(f"aten.{name}.default")
    (out,) = kernel_run(traced_operator(operator, zeros).region, (zeros,))
    assert torch.equal(out.signbit(), operator(zeros).signbit())


@pytest.mark.parametrize(
    ("name", "sample", "reason"),
    [
        ("aten.rrelu.default", (X, 0.1, 0.3, True), "rrelu in training"),
        ("aten.clamp.default", (X, NAN), "a bound that is NaN"),
        ("aten.add.Tensor", (X.double(), Y.double()), "float64 tensors"),
        ("aten.mul.Tensor", (X, torch.tensor(2.0, dtype=torch.float64)), "float64 tensors"),
        ("aten.mul.Tensor", (X.to(torch.complex64), Y), "complex64 tensors"),
        ("aten.abs.default", (X.to(torch.complex64),), "complex64 tensors"),
        ("aten._to_copy.default", (X, {"dtype": torch.float64}), "float64 tensors"),
        ("aten.mul.Tensor", (X, 1e39), "the number 1e\\+39 is beyond float32"),
        ("aten.lt.Scalar", (I64.to(torch.int8), 300), "the number 300 is beyond int8"),
        ("aten.cumsum.default", (X, 0), "aten.cumsum.default has no kernel expression"),
    ],
    ids=str,
)
def test_what_a_region_cannot_say_is_refused_with_a_reason(
    name, sample, reason, traced_operator
) -> None:
    args, kwargs = split(sample)
    with pytest.raises(NotLowered, match=reason):
        traced_operator(overload(name), *args, **kwargs)


def test_a_row_operator_never_joins_a_chain_by_itself() -> None:
    assert set(POINTWISE).isdisjoint(REDUCTIONS)


def test_users_cast_is_applied_between_two_operators(traced, assert_right) -> None:
    def scaled(x):
        return x.to(torch.bfloat16).to(torch.float32) * 3.0

    example = traced(scaled, floats(4, 9))
    assert_right(example)
    (exact,) = example.exact()
    assert not torch.allclose(exact, example.inputs[0].double() * 3.0, rtol=1e-4, equal_nan=True)


def test_the_tail_of_gelu_s_tanh_form_keeps_its_digits(traced, kernel_run) -> None:
    """1 + tanh(u) has none left at x = -5, where eager gives 0."""
    x = torch.linspace(-6, -2, 257)
    traced_gelu = traced(lambda x: torch.nn.functional.gelu(x, approximate="tanh"), x)
    (out,) = kernel_run(traced_gelu.region, traced_gelu.inputs)
    u = (2 / torch.pi) ** 0.5 * (x.double() + 0.044715 * x.double() ** 3)
    exact = x.double() * torch.sigmoid(2 * u)
    assert float(((out - exact) / exact).abs().max()) < 1e-5


def test_a_reciprocal_sees_the_sign_of_a_negated_zero(traced, assert_right) -> None:
    assert_right(traced(lambda x: 1.0 / -x, torch.tensor([0.0, -0.0, 2.0])))


def test_integers_wrap_at_the_operator_s_own_width(traced, assert_right) -> None:
    """A tensor without dimensions does not widen the others: the sum is an int32 and overflows."""
    big = torch.full((3,), 2**31 - 1, dtype=torch.int32)
    example = traced(lambda x, y: (x + y).to(torch.int64) + 1, big, torch.tensor(1))
    assert_right(example)
    assert example.exact()[0].tolist() == [-(2**31) + 1] * 3
