"""The contract's lines for whole models pass what they allow and fail what lies beyond."""

import math

import pytest
import torch
from contract_draws import by_measure, failures, normal

from fusion_kernels.model_tolerances import check_model


def model_draws(dtype, noise, draws=16):
    references = [normal(8, 64, seed=i) for i in range(draws)]
    shifts = [normal(8, 64, seed=100 + i) for i in range(draws)]
    eager = [(r + noise * s).to(dtype) for r, s in zip(references, shifts, strict=True)]
    return references, shifts, eager


@pytest.mark.parametrize(
    ("factor", "expected"), [(0.9, set()), (1.05, set()), (1.3, {"norm"}), (-1.05, {"difference"})]
)
def test_a_bfloat16_model_may_err_1_1_times_as_much_as_eager(factor, expected):
    references, shifts, eager = model_draws(torch.bfloat16, 0.02)
    pairs = zip(references, shifts, strict=True)
    fused = [(r + factor * 0.02 * s).bfloat16() for r, s in pairs]
    assert failures(check_model(fused, eager, references)) == expected


def test_a_float32_model_may_err_twice_as_much_as_eager_or_1e_minus_5():
    references, shifts, eager = model_draws(torch.float32, 1e-4)
    pairs = list(zip(references, shifts, strict=True))
    within = [(r + 1.9e-4 * s).float() for r, s in pairs]
    beyond = [(r + 2.1e-4 * s).float() for r, s in pairs]
    assert failures(check_model(within, eager, references)) == set()
    assert failures(check_model(beyond, eager, references)) == {"norm"}
    references, shifts, eager = model_draws(torch.float32, 4e-6)
    close = [(r + 9e-6 * s).float() for r, s in zip(references, shifts, strict=True)]
    norm = by_measure(check_model(close, eager, references))["norm"]
    assert norm.passed
    assert norm.error > 2 * norm.eager_error


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bug", ["zeros", "nan", "swapped", "shape"])
def test_planted_bugs_of_a_model_are_caught(dtype, bug):
    references, _, eager = model_draws(dtype, 1e-3)
    fused = [out.clone() for out in eager]
    if bug == "zeros":
        fused = [torch.zeros_like(out) for out in fused]
    elif bug == "nan":
        fused[4][0, 0] = math.nan
    elif bug == "swapped":
        fused = [out.flip(0) for out in fused]
    else:
        fused[15] = fused[15][:7]
    assert failures(check_model(fused, eager, references))
    assert not failures(check_model(eager, eager, references))


def test_a_float32_model_may_be_a_step_from_an_eager_one_that_is_nearly_exact():
    """Both round rightly but now and then; the difference is not held to less than a step."""
    references = [torch.rand(64, 33, dtype=torch.float64) + 1 for _ in range(16)]
    eager = [ref.float() for ref in references]
    for steps, passed in ((1, True), (3, False)):
        fused = [base + steps * torch.finfo(torch.float32).eps for base in eager]
        found = {r.measure: r.passed for r in check_model(fused, eager, references)}
        assert found == {"norm": True, "difference": passed}


def test_integer_outputs_of_a_model_agree_exactly():
    tokens = [torch.arange(8) + i for i in range(16)]
    assert not failures(check_model(tokens, tokens, tokens))
    wrong = [*tokens[:15], tokens[15].flip(0)]
    assert failures(check_model(wrong, tokens, tokens)) == {"exact"}


def test_float64_outputs_of_a_model_are_held_to_1e_minus_12():
    references = [normal(4, 8, seed=i) for i in range(16)]
    close = [reference * (1 + 1e-13) for reference in references]
    far = [reference * (1 + 1e-11) for reference in references]
    assert not failures(check_model(close, references, references))
    assert failures(check_model(far, references, references)) == {"element", "row"}


def test_fewer_than_16_draws_are_refused():
    references, _, eager = model_draws(torch.float32, 1e-4, draws=15)
    with pytest.raises(ValueError, match="16"):
        check_model(eager, eager, references)


# Complex numbers


def complex_normal(*shape, seed=0):
    return torch.complex(normal(*shape, seed=seed), normal(*shape, seed=seed + 1000))


@pytest.mark.parametrize("bug", ["none", "imaginary part", "nan"])
def test_complex_outputs_of_a_model(bug):
    references = [complex_normal(8, 16, seed=i) for i in range(16)]
    eager = [reference.to(torch.complex64) for reference in references]
    fused = [out.clone() for out in eager]
    if bug == "imaginary part":
        fused[3].imag.add_(1e-3)
    if bug == "nan":
        fused[3].imag[0, 0] = math.nan
    expected = {"none": set(), "imaginary part": {"norm", "difference"}, "nan": {"nonfinite"}}
    assert failures(check_model(fused, eager, references)) == expected[bug]
