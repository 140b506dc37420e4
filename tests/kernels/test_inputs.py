"""Random input draws: deterministic, as scaled, laid out and bounded as asked."""

import pytest
import torch

from fusion_kernels.inputs import (
    CASES,
    InputCase,
    InputSpec,
    draw,
    draw_case,
    generator_for,
    input_cases,
)

BY_LABEL = {case.label: case for case in CASES}
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
SPECS = (
    InputSpec((4, 96), torch.float32),
    InputSpec((4, 96), torch.bfloat16),
    InputSpec((96,), torch.float32, fixed=True),
    InputSpec((4,), torch.int64, bound=11),
)


def test_the_same_seed_draws_the_same_values_and_another_seed_others():
    first = draw((64,), torch.float32, 7)
    assert torch.equal(first, draw((64,), torch.float32, 7))
    assert not torch.equal(first, draw((64,), torch.float32, 8))


def test_two_inputs_of_one_case_are_drawn_from_streams_of_their_own():
    spec = InputSpec((64,), torch.float32)
    x, y = draw_case((spec, spec), BY_LABEL["normal"], 0)
    assert not torch.equal(x, y)


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_small_tensors_are_drawn_on_the_cpu_for_every_device(device):
    assert generator_for(1 << 16, device, 3).device.type == "cpu"


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e2, 1e4])
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_scale_is_the_standard_deviation(dtype, scale):
    values = draw((200, 100), dtype, 0, case=InputCase("s", scale=scale)).double()
    assert values.std().item() == pytest.approx(scale, rel=0.03)
    assert abs(values.mean().item()) < 0.03 * scale


def test_a_large_mean_keeps_the_spread_of_one():
    values = draw((100, 100), torch.float32, 0, case=BY_LABEL["mean 1000"])
    assert values.mean().item() == pytest.approx(1000.0, rel=1e-3)
    assert values.std().item() == pytest.approx(1.0, rel=0.03)


def test_the_scales_reach_from_1e_minus_6_to_1e4():
    scales = [case.scale for case in CASES]
    assert (min(scales), max(scales)) == (1e-6, 1e4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("layout", ["strided", "transposed", "offset"])
def test_a_layout_changes_the_strides_but_not_the_values(dtype, layout):
    plain = draw((6, 10), dtype, 3)
    laid_out = draw((6, 10), dtype, 3, case=InputCase("l", layout=layout))
    assert torch.equal(plain, laid_out)
    moved = laid_out.stride() != plain.stride() or laid_out.storage_offset() != 0
    assert moved


@pytest.mark.parametrize(
    ("layout", "strides", "offset"),
    [
        ("contiguous", (10, 1), 0),
        ("strided", (20, 2), 0),
        ("transposed", (1, 6), 0),
        ("expanded", (0, 1), 0),
        ("offset", (10, 1), 1),
    ],
)
def test_each_layout_has_its_strides_and_offset(layout, strides, offset):
    values = draw((6, 10), torch.float32, 0, case=InputCase("l", layout=layout))
    assert values.shape == (6, 10)
    assert (values.stride(), values.storage_offset()) == (strides, offset)


def test_a_kernel_that_overlooks_a_stride_reads_nan():
    values = draw((4, 8), torch.float32, 0, case=BY_LABEL["strided"])
    as_if_contiguous = torch.as_strided(values, (4, 8), (8, 1))
    assert torch.isnan(as_if_contiguous).any()
    assert not torch.isnan(values).any()


def test_expanded_rows_are_one_row_in_memory():
    values = draw((5, 8), torch.float32, 0, case=BY_LABEL["expanded"])
    assert torch.equal(values, values[:1].expand(5, 8))
    assert values.untyped_storage().nbytes() == 8 * 4


@pytest.mark.parametrize("dtype", FLOATS)
def test_special_values_stand_in_otherwise_finite_draws(dtype):
    with_nan = draw((4, 8), dtype, 0, case=BY_LABEL["nan"])
    with_inf = draw((4, 8), dtype, 0, case=BY_LABEL["inf"])
    assert (int(with_nan.isnan().sum()), int(with_nan.isinf().sum())) == (1, 0)
    assert int((with_inf == torch.inf).sum()) == int((with_inf == -torch.inf).sum()) == 1
    assert not draw((4, 8), dtype, 0, case=BY_LABEL["zeros"]).any()


def test_constant_rows_hold_one_value_a_row_and_differ_between_rows():
    values = draw((5, 8), torch.float32, 0, case=BY_LABEL["constant rows"])
    assert torch.equal(values, values[:, :1].expand(5, 8))
    assert len(values[:, 0].unique()) == 5


def test_an_index_stays_below_its_bound_and_reaches_both_ends():
    values = draw((2000,), torch.int64, 0, bound=7)
    assert (int(values.min()), int(values.max())) == (0, 6)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.uint8])
def test_unbounded_integers_are_small_and_have_the_signs_of_their_dtype(dtype):
    values = draw((2000,), dtype, 0)
    assert (int(values.min()), int(values.max())) == (-8 if dtype.is_signed else 0, 8)


def test_booleans_are_both():
    values = draw((200,), torch.bool, 0)
    assert values.any()
    assert not values.all()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_parameters_keep_scale_1_and_stay_contiguous_in_every_case(case):
    weight = draw_case(SPECS, case, 0)[2]
    assert weight.is_contiguous()
    assert weight.std().item() == pytest.approx(1.0, rel=0.3)


def test_cases_keep_every_spec_and_say_which_they_are():
    labels = []
    for label, tensors in input_cases(SPECS, 0):
        labels.append(label)
        for spec, tensor in zip(SPECS, tensors, strict=True):
            assert (tuple(tensor.shape), tensor.dtype) == (spec.shape, spec.dtype)
    assert labels == [case.label for case in CASES]


def test_integer_inputs_have_only_the_cases_that_change_them():
    labels = [label for label, _ in input_cases((InputSpec((4, 6), torch.int64),), 0)]
    assert labels == ["normal", "strided", "transposed", "expanded", "offset"]


def test_one_dimension_is_neither_transposed_nor_expanded():
    labels = {label for label, _ in input_cases((InputSpec((6,), torch.float32),), 0)}
    assert {"strided", "offset"} <= labels
    assert not labels & {"transposed", "expanded"}


@pytest.mark.parametrize("shape", [(), (0, 8), (3, 0), (1,), (1, 1)])
def test_degenerate_shapes_are_drawn_in_every_case(shape):
    for case in CASES:
        assert draw(shape, torch.float32, 0, case=case).shape == shape


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_is_drawn_in_every_layout(dtype):
    plain = draw((4, 6), dtype, 0).float()
    for layout in ("strided", "transposed", "offset"):
        laid_out = draw((4, 6), dtype, 0, case=InputCase("l", layout=layout))
        assert torch.equal(laid_out.float(), plain)
