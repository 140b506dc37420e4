"""The clause for rows where float32 itself misses the line: right kernels pass, and bugs in these
rows and beside them do not.
"""

import math

import pytest
import torch
from contract_draws import by_measure, failures, normal

from fusion_kernels.rounding import round_once
from fusion_kernels.tolerances import check, check_ill_conditioned

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LOG2_E = 1.4426950408889634
SMALL = 1e-36


# Rows that no float32 arithmetic can serve


def noisy_draws(count=16, rows=16):
    """Each row of eager's is off by far more than the line."""
    references = [normal(rows, 257, seed=seed) for seed in range(count)]
    noise = [normal(rows, 257, seed=100 + seed) for seed in range(count)]
    eagers = [(ref + 1e-3 * n).float() for ref, n in zip(references, noise, strict=True)]
    return references, eagers


def off_by(factor, references, eagers):
    pairs = zip(references, eagers, strict=True)
    return [(ref + factor * (eager.double() - ref)).float() for ref, eager in pairs]


def test_a_result_as_good_as_eager_passes_where_float32_misses_the_line():
    references, eagers = noisy_draws()
    results = by_measure(check_ill_conditioned(eagers, references, eagers))
    assert list(results) == ["conditioning", "nonfinite", "largest", "rms"]
    assert results["conditioning"].eager_error > 1.0
    assert all(result.passed for result in results.values())


def test_the_clause_is_refused_where_float32_meets_the_line():
    references = [normal(16, 257, seed=seed) for seed in range(16)]
    right = [reference.float() for reference in references]
    (result,) = check_ill_conditioned(right, references, right)
    assert (result.measure, result.passed) == ("conditioning", False)
    assert result.eager_error < 1.0


@pytest.mark.parametrize(
    ("factor", "expected"), [(1.05, set()), (1.2, {"rms"}), (2.5, {"rms", "largest"})]
)
def test_the_largest_error_may_be_2_and_the_rms_1_1_times_eagers(factor, expected):
    references, eagers = noisy_draws()
    outs = off_by(factor, references, eagers)
    assert failures(check_ill_conditioned(outs, references, eagers)) == expected


def test_the_size_of_one_row_does_not_hide_another():
    references, eagers = noisy_draws()
    large = torch.ones(16, 1, dtype=torch.float64)
    large[0] = 1e30
    references = [large * reference for reference in references]
    eagers = [(large * eager).float() for eager in eagers]
    outs = [eager.clone() for eager in eagers]
    outs[7][3] *= 1.1
    assert failures(check_ill_conditioned(eagers, references, eagers)) == set()
    assert "largest" in failures(check_ill_conditioned(outs, references, eagers))


@pytest.mark.parametrize("bug", ["zeros", "nan", "element", "shape", "dtype"])
def test_planted_bugs_are_caught(bug):
    references, eagers = noisy_draws()
    outs = [eager.clone() for eager in eagers]
    if bug == "zeros":
        outs = [torch.zeros_like(out) for out in outs]
    elif bug == "nan":
        outs[9][3, 3] = math.nan
    elif bug == "element":
        outs[9][3, 3] += 0.05
    elif bug == "shape":
        outs[9] = outs[9][:7]
    else:
        outs[9] = outs[9].double()
    assert failures(check_ill_conditioned(outs, references, eagers))


def test_a_half_output_needs_its_float32_evaluation():
    references, eagers = noisy_draws()
    halves = [eager.bfloat16() for eager in eagers]
    with pytest.raises(ValueError, match="float32"):
        check_ill_conditioned(halves, references, halves)
    with pytest.raises(ValueError, match="dtype"):
        check_ill_conditioned(halves, references, halves, float32=eagers)


def test_fewer_than_16_draws_are_refused():
    references, eagers = noisy_draws(count=15)
    with pytest.raises(ValueError, match="16"):
        check_ill_conditioned(eagers, references, eagers)


def test_where_float32_misses_only_the_norm_all_rows_are_judged_against_eager():
    references = [normal(8, 1024, seed=seed) for seed in range(16)]
    rounded = [round_once(reference, torch.bfloat16) for reference in references]
    near = [torch.nextafter(out, torch.full_like(out, math.inf)) for out in rounded]
    assert failures(check(near[0], references[0])) == {"norm"}
    results = by_measure(check_ill_conditioned(near, references, near, float32=near))
    assert list(results) == ["conditioning", "nonfinite", "largest", "rms"]
    assert not failures(results.values())


# Casts to 16 bits within a chain


def cast_draws(scale, lost_cast=False):
    """x, rounded to bfloat16 after a root mean square, times a weight: 16 draws of a result whose
    first product is `scale` times as large, with truth, eager's and float32's.
    """
    found = []
    for seed in range(16):
        x, weight = normal(300, 257, seed=seed).float(), normal(257, seed=99).bfloat16()
        size = x.double().pow(2).mean(-1, keepdim=True).rsqrt()
        exact = (x.double() * size).bfloat16().double() * weight.double()
        float32 = (x * x.pow(2).mean(-1, keepdim=True).rsqrt()).bfloat16() * weight
        inner = x * (size.float() * scale)
        ours = (inner if lost_cast else inner.bfloat16().float()) * weight.float()
        found.append((ours.bfloat16(), exact, float32, float32))
    return map(list, zip(*found, strict=True))


def test_a_cast_that_rounds_the_other_way_is_eagers_too():
    outs, references, eagers, float32 = cast_draws(1 + 2e-7)
    assert any("element" in failures(check(*pair)) for pair in zip(outs, references, strict=True))
    results = check_ill_conditioned(outs, references, eagers, float32=float32)
    assert not failures(results)
    assert by_measure(results)["conditioning"].eager_error < 4


@pytest.mark.parametrize(("scale", "lost_cast"), [(1.01, False), (1.0, True)])
def test_a_wrong_constant_and_a_lost_cast_are_not(scale, lost_cast):
    outs, references, eagers, float32 = cast_draws(scale, lost_cast)
    assert "rms" in failures(check_ill_conditioned(outs, references, eagers, float32=float32))


# Exponentials that overflow before they are made small


def exp_draw(seed, dtype):
    """x and factor: four rows where exp fits, four where it overflows float32 here and there."""
    generator = torch.Generator().manual_seed(seed)
    moderate = torch.randn(4, 65, generator=generator)
    extreme = 60 + 32 * torch.rand(4, 65, generator=generator)
    factor = torch.tensor([1.0] * 4 + [SMALL] * 4)[:, None]
    bias = torch.randn(65, generator=generator)
    return torch.cat([moderate, extreme]).to(dtype), factor, bias.to(dtype)


def program(x, factor, bias):
    return torch.exp(x) * factor.to(x.dtype if x.dtype is torch.float64 else factor.dtype) + bias


def in_dtype(x, factor, bias):
    """Eager's: each result is rounded to x's dtype."""
    return ((torch.exp(x).float() * factor).to(x.dtype).float() + bias.float()).to(x.dtype)


def kernel(x, factor, bias):
    """Another exponential than eager's, rounded once."""
    return (torch.exp2(x.float() * LOG2_E) * factor + bias.float()).to(x.dtype)


class Draws:
    """Sixteen draws of the chain, its truth, eager's and float32's."""

    def __init__(self, dtype):
        self.inputs = [exp_draw(seed, dtype) for seed in range(16)]
        self.references = [program(*(t.double() for t in draw)) for draw in self.inputs]
        self.eagers = [in_dtype(*draw) for draw in self.inputs]
        self.float32 = [program(*(t.float() for t in draw)).to(dtype) for draw in self.inputs]
        self.right = [kernel(*draw) for draw in self.inputs]

    def judge(self, outs):
        return check_ill_conditioned(outs, self.references, self.eagers, float32=self.float32)


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def draws(request):
    return Draws(request.param)


def test_a_right_chain_passes_although_its_exponential_overflows(draws):
    assert any(
        "nonfinite" in failures(check(*pair))
        for pair in zip(draws.right, draws.references, strict=True)
    )
    results = by_measure(draws.judge(draws.right))
    assert not failures(results.values())
    assert results["conditioning"].eager_error == math.inf
    assert {"nonfinite", "element", "largest", "rms"} <= set(results)


def test_eagers_wrong_places_are_reported(draws):
    dtype = draws.right[0].dtype
    pairs = zip(draws.eagers, draws.references, strict=True)
    wrong = [int((e.isfinite() != round_once(r, dtype).isfinite()).sum()) for e, r in pairs]
    result = by_measure(draws.judge(draws.right))["nonfinite"]
    assert (result.error, result.eager_error) == (0.0, sum(wrong))


@pytest.mark.parametrize("value", [0.0, math.nan, -math.inf])
def test_where_float32_and_eager_overflow_any_value_will_do(draws, value):
    outs = [out.masked_fill(out.isinf(), value) for out in draws.right]
    assert not failures(draws.judge(outs))


def wrong_constant(out, bias, *_):
    return ((out.float() - bias.float()) * 1.1 + bias.float()).to(out.dtype)


def lost_last_column(out, *_):
    out[:, -1] = 0.0
    return out


def missing_bias(out, bias, *_):
    return (out.float() - bias.float()).to(out.dtype)


def overflowing_earlier(out, _, x):
    """Float32's exponential has room up to 88."""
    return out.masked_fill((x > 80) | ((x > 0) & (x < 20)), math.inf)


def zeros(out, *_):
    return torch.zeros_like(out)


def one_element(out, *_):
    values = out.masked_fill(~out.isfinite(), 0.0)
    row = int(values.abs().amax(dim=1).argmax())
    col = int(out[row].isfinite().to(torch.uint8).argmax())
    out[row, col] += 0.1 * values[row].abs().max()
    return out


BUGS = (wrong_constant, lost_last_column, missing_bias, overflowing_earlier, zeros, one_element)


@pytest.mark.parametrize("rows", [slice(4), slice(4, 8)], ids=["beside", "within"])
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_within_or_beside_the_rows_that_overflow_is_caught(draws, bug, rows):
    outs = [out.clone() for out in draws.right]
    for out, (x, _, bias) in zip(outs, draws.inputs, strict=True):
        out[rows] = bug(out[rows].clone(), bias, x[rows])
    assert failures(draws.judge(outs))


def test_an_overflow_that_only_eager_suffers_is_not_copied():
    draws = Draws(torch.float16)
    copied = [
        torch.where(eager.isinf() & ~float32.isinf(), eager, right)
        for eager, float32, right in zip(draws.eagers, draws.float32, draws.right, strict=True)
    ]
    assert failures(draws.judge(copied)) == {"nonfinite"}


def test_a_row_beside_an_ill_conditioned_one_is_held_to_the_line():
    references, eagers = noisy_draws()
    for reference, eager in zip(references, eagers, strict=True):
        eager[1:] = reference[1:].float()
        eager[0] += 100.0
    outs = [eager.clone() for eager in eagers]
    outs[5][3] *= 1 + 3e-5
    assert not failures(check_ill_conditioned(eagers, references, eagers))
    assert failures(check_ill_conditioned(outs, references, eagers)) == {"element", "row"}


def test_subnormal_rows_may_be_flushed_to_zero():
    """One of them must not open the clause for the others either."""
    references = [normal(4, 65, seed=seed) for seed in range(16)]
    for reference in references:
        reference[0] *= 3e-42
    eagers = [reference.float() for reference in references]
    flushed = [eager.clone() for eager in eagers]
    for out in flushed:
        out[0] = 0.0
    assert check_ill_conditioned(eagers, references, eagers)[0].passed
    assert not failures(check_ill_conditioned(flushed, references, eagers))
    flushed[3][1] *= 1 + 3e-5
    assert failures(check_ill_conditioned(flushed, references, eagers)) == {"element", "row"}


# Rows where float32 is lucky


def norm_in_float32(x, flipped=False):
    """A layer norm that sums its columns in one order or another."""
    mean = (x.flip(1) if flipped else x).sum(1, keepdim=True) / x.shape[1]
    centered = x - mean
    return centered * torch.rsqrt((centered * centered).mean(1, keepdim=True) + 1e-5)


def norm_in_float64(x):
    return torch.nn.functional.layer_norm(x.double(), x.shape[1:])


MEANS = torch.tensor([1000.0] * 12 + [0.0] * 4, dtype=torch.float64)[:, None]


def norm_draws(seeds=16):
    return [(normal(16, 257, seed=seed) + MEANS).float() for seed in range(seeds)]


def judge_norm(outs, inputs):
    def nearby(draw):
        for number in range(1, 17):
            moved = inputs[draw] * (1 + number * 1.3e-4)
            yield norm_in_float32(moved), norm_in_float64(moved)

    references = [norm_in_float64(x) for x in inputs]
    eagers = [norm_in_float32(x) for x in inputs]
    results = check_ill_conditioned(outs, references, eagers, nearby=nearby)
    return failures(results), failures(check_ill_conditioned(outs, references, eagers))


def test_a_row_that_float32_gets_right_by_luck_is_ill_conditioned_all_the_same():
    inputs = norm_draws()
    with_nearby, without = judge_norm([norm_in_float32(x, flipped=True) for x in inputs], inputs)
    assert with_nearby == set()
    assert without & {"element", "row"}


@pytest.mark.parametrize(("row", "factor"), [(14, 1 + 3e-5), (3, 1.01)])
def test_nearby_inputs_excuse_no_bug(row, factor):
    inputs = norm_draws()
    outs = [norm_in_float32(x, flipped=True) for x in inputs]
    outs[4][row] *= factor
    with_nearby, _ = judge_norm(outs, inputs)
    assert with_nearby == ({"element", "row"} if row == 14 else {"largest", "rms"})
