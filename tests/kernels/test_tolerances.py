"""Each line of the numerics contract passes what it allows and fails what lies beyond it."""

import math

import pytest
import torch
from contract_draws import by_measure, failures, normal

from fusion_kernels.rounding import round_once, step_at
from fusion_kernels.tolerances import TOLERANCES, check

HALVES = (torch.float16, torch.bfloat16)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def passes(out, reference, **options):
    return all(result.passed for result in check(out, reference, **options))


def failed(out, reference, **options):
    return {result.measure for result in check(out, reference, **options) if not result.passed}


# Rounding


@pytest.mark.parametrize("dtype", HALVES)
def test_rounding_happens_once(dtype):
    step = torch.finfo(dtype).eps
    # Just above the middle of 1 and the next value; float32 in between would lose the excess.
    value = torch.tensor([1 + step / 2 + 2.0**-40], dtype=torch.float64)
    assert value.to(torch.float32).to(dtype).double().item() == 1.0
    assert round_once(value, dtype).double().item() == 1 + step


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_rounding_gives_the_nearest_of_the_neighbours(dtype):
    values = normal(4096) * torch.exp2(torch.linspace(-20, 10, 4096, dtype=torch.float64))
    rounded = round_once(values, dtype)
    assert bool(((rounded.double() - values).abs() <= step_at(rounded) / 2).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
def test_every_value_of_the_dtype_rounds_to_itself(dtype):
    values = torch.tensor([0.0, 1.5, -3.0, math.inf, -math.inf, torch.finfo(dtype).max])
    exact = values.to(dtype).double()
    assert torch.equal(round_once(exact, dtype).double(), exact)
    assert round_once(torch.tensor([math.nan], dtype=torch.float64), dtype).isnan().item()


@pytest.mark.parametrize("dtype", HALVES)
def test_rounding_overflows_where_the_dtype_ends(dtype):
    beyond = torch.tensor([1e39, -1e300], dtype=torch.float64)
    assert round_once(beyond, dtype).double().tolist() == [math.inf, -math.inf]


@pytest.mark.parametrize("dtype", HALVES)
def test_a_step_reaches_exactly_the_next_value(dtype):
    bits = torch.arange(0, torch.tensor(60000.0).to(dtype).view(torch.int16).item())
    values = bits.to(torch.int16).view(dtype)
    following = (bits + 1).to(torch.int16).view(dtype)
    assert torch.equal(values.double() + step_at(values), following.double())


# Float32


def test_float32_element_may_be_1e_minus_5_of_max_1_and_reference():
    reference = torch.full((1, 4096), 100.0, dtype=torch.float64)
    within, beyond = reference.clone(), reference.clone()
    within[0, 7] += 0.99e-3
    beyond[0, 7] += 1.1e-3
    assert passes(within.float(), reference)
    assert failed(beyond.float(), reference) == {"element"}
    assert by_measure(check(beyond.float(), reference))["element"].where == (0, 7)


def test_float32_element_below_one_is_held_to_an_absolute_error():
    reference = torch.full((1, 4096), 1.0, dtype=torch.float64)
    reference[0, 7] = 0.001
    within, beyond = reference.clone(), reference.clone()
    within[0, 7] += 0.99e-5
    beyond[0, 7] += 1.1e-5
    assert passes(within.float(), reference)
    assert failed(beyond.float(), reference) == {"element"}


def test_float32_row_is_held_to_its_own_norm_however_small():
    reference = normal(8, 257, scale=1e-6)
    wrong = reference.clone()
    wrong[3] *= 1 + 1.1e-5
    assert passes(reference.float(), reference)
    assert failed(wrong.float(), reference) == {"row"}
    assert by_measure(check(wrong.float(), reference))["row"].where == (3,)


def test_a_row_of_a_deeper_tensor_is_indexed_in_its_leading_dimensions():
    reference = normal(2, 3, 5, 64, scale=1e-6)
    wrong = reference.clone()
    wrong[1, 2, 4] *= 1.001
    assert by_measure(check(wrong.float(), reference))["row"].where == (1, 2, 4)


@pytest.mark.parametrize("shape", [(), (1,), (513,), (7, 1), (2, 3, 1, 1)])
def test_few_dimensions_are_one_row_and_a_relative_error_shows(shape):
    reference = normal(*shape, seed=5) + 3.0
    assert passes(reference.float(), reference)
    assert "row" in failed((reference * 1.0001).float(), reference)


def test_statistics_are_judged_alike_with_and_without_a_kept_dimension():
    reference = normal(300)
    out = (reference + 2e-6).float()
    flat = by_measure(check(out, reference))["row"]
    kept = by_measure(check(out[:, None], reference[:, None]))["row"]
    assert flat.error == kept.error


# Halves


@pytest.mark.parametrize("dtype", HALVES)
def test_half_element_may_be_one_step_off_but_not_two(dtype):
    reference = normal(4, 100)
    target = round_once(reference, dtype)
    for steps, expected in ((1, True), (2, False)):
        out = target.clone()
        index = int(reference.abs().argmax())
        moved = target.flatten()[index].double() + steps * step_at(target).flatten()[index]
        out.view(-1)[index] = moved.to(dtype)
        assert passes(out, reference) is expected


@pytest.mark.parametrize("dtype", HALVES)
def test_half_element_near_zero_may_be_1e_minus_5_of_its_row(dtype):
    reference = torch.full((1, 64), 1.0, dtype=torch.float64)
    reference[0, 5] = 1e-7
    within, beyond = reference.clone(), reference.clone()
    within[0, 5] = 0.9e-5
    beyond[0, 5] = 1.2e-5
    assert passes(within.to(dtype), reference)
    assert failed(beyond.to(dtype), reference) == {"element"}


@pytest.mark.parametrize("dtype", HALVES)
def test_one_step_everywhere_fails_the_norm_of_1024_elements_and_no_fewer(dtype):
    reference = normal(1, 1024)
    target = round_once(reference, dtype)
    out = (target.double() + step_at(target)).to(dtype)
    unit = torch.finfo(dtype).eps
    expected = {"norm"} if unit > 1.5e-3 else set()
    assert failed(out, reference) == expected
    assert passes(out[:, :1023], reference[:, :1023])


def test_half_norm_is_taken_against_the_rounded_reference():
    reference = normal(4, 1024)
    error = by_measure(check(reference.to(torch.bfloat16), reference))["norm"].error
    assert error < 1e-6


@pytest.mark.parametrize("dtype", HALVES)
def test_subnormal_results_may_be_a_subnormal_step_off(dtype):
    smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    reference = torch.full((1, 8), 3 * smallest, dtype=torch.float64)
    for steps, expected in ((1, True), (2, False)):
        out = reference.clone()
        out[0, 2] += steps * smallest
        assert passes(out.to(dtype), reference) is expected


# Other dtypes


def test_float64_is_relative_to_1e_minus_12():
    reference = normal(8, 300, scale=1e4)
    assert passes(reference * (1 + 0.9e-12), reference)
    assert failed(reference * (1 + 2e-12), reference) == {"element", "row"}


def test_float64_squares_do_not_overflow():
    reference = normal(4, 32) * 1e300
    assert passes(reference.clone(), reference)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_float8_may_be_one_step_off_but_not_two(dtype):
    reference = torch.tensor([[1.0, 2.0, -4.0]], dtype=torch.float64)
    step = step_at(reference.to(dtype))
    assert passes((reference + step * reference.sign()).to(dtype), reference)
    assert failed((reference + 2 * step * reference.sign()).to(dtype), reference) == {"element"}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_integers_and_booleans_are_exact(dtype):
    reference = torch.tensor([[1, 0, 1], [0, 1, 1]]).to(dtype)
    assert passes(reference.clone(), reference)
    wrong = reference.clone()
    wrong[1, 0] = 1
    result = check(wrong, reference)[0]
    assert (result.measure, result.error, result.where) == ("exact", 1.0, (1, 0))
    assert not result.passed


def test_large_integers_are_compared_beyond_float64():
    reference = torch.tensor([2**60 + 1])
    assert not passes(torch.tensor([2**60]), reference)


def test_a_dtype_without_rules_never_passes():
    out = torch.zeros(3, dtype=torch.complex64)
    assert failed(out, torch.zeros(3, dtype=torch.float64)) == {"dtype"}


# Shapes, zeros, special values


@pytest.mark.parametrize("dtype", list(TOLERANCES))
def test_empty_tensors_are_held_to_shape_and_dtype(dtype):
    reference = torch.zeros((0, 8), dtype=torch.float64)
    assert passes(torch.zeros((0, 8), dtype=dtype), reference)
    assert failed(torch.zeros((0, 9), dtype=dtype), reference) == {"shape"}


def test_a_broadcastable_but_different_shape_fails():
    assert failed(torch.zeros(1, 8), torch.zeros((4, 8), dtype=torch.float64)) == {"shape"}


def test_another_dtype_than_eager_or_than_asked_for_fails():
    reference = normal(4, 8)
    assert failed(reference.float(), reference, eager=reference.bfloat16()) == {"dtype"}
    assert failed(reference.float(), reference, dtype=torch.float16) == {"dtype"}
    assert failed(torch.zeros(4, 8, dtype=torch.int64), reference) == {"dtype"}


def test_a_reference_in_less_than_float64_is_refused():
    with pytest.raises(ValueError, match="float64"):
        check(torch.zeros(4), torch.zeros(4))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES])
def test_a_zero_reference_allows_1e_minus_6(dtype):
    reference = torch.zeros((3, 8), dtype=torch.float64)
    assert passes(torch.zeros((3, 8), dtype=dtype), reference)
    assert passes(torch.full((3, 8), 0.9e-6, dtype=dtype), reference)
    beyond = torch.zeros((3, 8), dtype=dtype)
    beyond[1, 4] = 1.3e-6
    assert failed(beyond, reference) == {"zero"}
    assert by_measure(check(beyond, reference))["zero"].where == (1, 4)


def test_an_exact_zero_among_other_values_allows_1e_minus_6_too():
    reference = torch.ones((1, 64), dtype=torch.float64)
    reference[0, 3] = 0.0
    out = reference.float()
    out[0, 3] = 3e-6
    assert failed(out, reference) == {"zero"}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES])
def test_nan_and_infinities_stand_where_the_rounded_reference_has_them(dtype):
    reference = normal(4, 300)
    reference[0, 1], reference[1, 2], reference[2, 3] = math.nan, math.inf, -math.inf
    right = reference.to(dtype)
    assert passes(right, reference)
    for index, value in (
        ((0, 1), 0.0),
        ((1, 2), -math.inf),
        ((2, 3), math.nan),
        ((3, 3), math.nan),
    ):
        wrong = right.clone()
        wrong[index] = value
        assert failed(wrong, reference) == {"nonfinite"}
        assert by_measure(check(wrong, reference))["nonfinite"].where == index


def test_a_value_beyond_float16_must_come_out_infinite():
    reference = torch.tensor([[1e5, 1.0]], dtype=torch.float64)
    assert passes(torch.tensor([[math.inf, 1.0]], dtype=torch.float16), reference)
    assert failed(torch.tensor([[65504.0, 1.0]], dtype=torch.float16), reference) == {"nonfinite"}


def test_an_overflow_that_only_eager_suffers_is_reported_and_not_asked_for():
    reference = torch.ones((2, 8), dtype=torch.float64)
    eager = reference.half()
    eager[1, 5] = math.inf
    result = by_measure(check(reference.half(), reference, eager=eager))["nonfinite"]
    assert (result.passed, result.error, result.eager_error) == (True, 0.0, 1.0)
    assert failed(eager, reference, eager=eager) == {"nonfinite"}


def test_eager_is_reported_beside_and_loosens_nothing():
    reference = normal(4, 64)
    eager = (reference * 1.5).float()
    out = (reference * 1.1).float()
    results = by_measure(check(out, reference, eager=eager))
    assert results["row"].eager_error == pytest.approx(0.5, rel=1e-3)
    assert not results["row"].passed


def test_strided_outputs_are_checked_by_their_values():
    reference = normal(8, 64)
    assert passes(reference.float().T.contiguous().T, reference)
    assert not passes((reference * 1.01).float().T.contiguous().T, reference)


# Complex numbers


def complex_normal(*shape, seed=0):
    return torch.complex(normal(*shape, seed=seed), normal(*shape, seed=seed + 1000))


@pytest.mark.parametrize(
    ("dtype", "right", "wrong"),
    [(torch.complex64, 5e-6, 2e-5), (torch.complex128, 5e-13, 2e-12)],
)
@pytest.mark.parametrize("shape", [(), (33,), (4, 33), (0, 33)])
def test_complex_outputs_are_held_to_the_rule_of_their_parts(dtype, right, wrong, shape):
    reference = complex_normal(*shape)
    assert not failures(check((reference * (1 + right)).to(dtype), reference))
    off = (reference + wrong * 1j * reference.abs()).to(dtype)
    assert bool(failures(check(off, reference))) == bool(reference.numel())


def test_complex_results_are_not_taken_for_real_ones_or_of_other_width():
    reference = complex_normal(8)
    out = reference.to(torch.complex64)
    assert failures(check(out, reference, dtype=torch.complex128)) == {"dtype"}
    assert failures(check(out, reference.real)) == {"dtype"}
    assert failures(check(out.real, reference)) == {"dtype"}
    assert failures(check(out[:7], reference)) == {"shape"}
    assert failures(check(out.conj(), reference)) >= {"element", "row"}
    assert not failures(check(out.conj(), reference.conj()))
