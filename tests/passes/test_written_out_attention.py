"""Attention in parts becomes one operator where it means the same, row for row; else it stays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.passes.cancel_pairs import cancel_pairs
from planner.passes.fold_constants import fold_constants
from planner.passes.masks import simplify_masks
from planner.passes.noops import drop_asserts, drop_noops
from planner.passes.runner import run_passes
from planner.passes.written_out_attention import written_out_attention

SDPA = "scaled_dot_product_attention.default"
LOWEST = torch.finfo(torch.float32).min


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, dtype=dtype)


def qkv(
    batch: int = 2, rows: int = 5, keys: int = 7, width: int = 4, wide: int = 4
) -> tuple[Tensor, ...]:
    return draw(batch, 3, rows, width), draw(batch, 3, keys, width), draw(batch, 3, keys, wide)


def changed(exported: Any, *args: Tensor) -> tuple[str, ...]:
    """Run the pass; results stay within rounding, NaN where they were, with the same strides."""
    before = [("drop_asserts", drop_asserts), ("drop_noops", drop_noops)]
    run_passes(exported.program, [*before, ("fold_constants", fold_constants)])
    (record,) = run_passes(exported.program, [("attention", written_out_attention)])
    exported.program.validate()
    require_close(exported, *(args or exported.args))
    return record.notes


def require_close(exported: Any, *args: Tensor) -> None:
    with torch.no_grad():
        actual, expected = exported.program.module()(*args), exported.module(*args)
    pairs = [(actual, expected)]
    if isinstance(actual, tuple):
        pairs = list(zip(actual, expected, strict=True))
    for ours, theirs in pairs:
        assert ours.stride() == theirs.stride()
        if ours.dtype.itemsize > 2:
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, equal_nan=True)
        else:
            require_no_less_exact(exported, args)


def require_no_less_exact(exported: Any, args: Sequence[Tensor]) -> None:
    """Against float64, over 16 draws: of a dozen elements one draw tells little."""
    errors = []
    for _ in range(16):
        drawn = [torch.randn_like(x) if x.is_floating_point() else x for x in args]
        wide = [x.double() if x.is_floating_point() else x for x in drawn]
        with torch.no_grad():
            outs = exported.program.module()(*drawn), exported.module(*drawn)
            truth = exported.module(*wide)
        errors.append([(out.double() - truth).norm() for out in outs])
    error, limit = torch.tensor(errors).norm(dim=0)
    assert error <= 1.1 * limit


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * 0.5).softmax(-1) @ v


@pytest.mark.parametrize(
    "function",
    [
        attend,
        lambda q, k, v: (q @ k.mT / math.sqrt(4)).softmax(3) @ v,
        lambda q, k, v: (0.3 * (q @ k.transpose(-1, -2))).softmax(-1) @ v,
        lambda q, k, v: ((q * 0.5) @ k.permute(0, 1, 3, 2)).softmax(-1) @ v,
        lambda q, k, v: (q @ k.mT * 0.5 / 3).double().softmax(-1).float() @ v,
        lambda q, k, v: (q @ k.mT).softmax(-1, dtype=torch.float32).to(q.dtype) @ v,
        lambda q, k, v: F.dropout((q @ k.mT).softmax(-1), 0.1, False) @ v,
        lambda q, k, v: F.dropout((q @ k.mT).softmax(-1), 0.0, True) @ v,
        lambda q, k, v: attend(q, k, v).transpose(1, 2).reshape(2, 5, 12),
        lambda q, k, v: torch.bmm(
            torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT).softmax(-1), v.flatten(0, 1)
        ),
    ],
    ids=[
        "scaled", "divided", "left", "scaled_query", "float64", "dtype", "idle_dropout",
        "no_dropout", "merged_heads", "bmm",
    ],
)  # fmt: skip
def test_what_means_attention_becomes_it(export: Any, function: Any) -> None:
    exported = export(function, *qkv())
    assert changed(exported) == ("1 attentions became one operator each",)
    assert SDPA in exported.ops()
    assert not {"softmax.int", "matmul.default", "bmm.default"} & set(exported.ops())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "sizes", [(2, 257, 257, 16, 16), (1, 1, 9, 4, 4), (2, 5, 7, 4, 6)], ids=str
)
def test_dtypes_and_sizes(export: Any, dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
    exported = export(attend, *(x.to(dtype) for x in qkv(*sizes)))
    assert changed(exported) == ("1 attentions became one operator each",)


def test_a_strided_query(export: Any) -> None:
    q, k, v = qkv()
    exported = export(attend, draw(2, 5, 3, 8)[..., ::2].transpose(1, 2), k, v)
    assert changed(exported) == ("1 attentions became one operator each",)
    assert q.shape == exported.args[0].shape


def hidden(rows: int = 5, keys: int = 7) -> Tensor:
    """True where a key is hidden; one row of the first sequence sees nothing."""
    mask = torch.rand(2, 1, rows, keys) < 0.4
    mask[0, 0, 1] = True
    mask[1, 0, 0] = False
    return mask


def added(value: float) -> Tensor:
    return torch.zeros(2, 1, 5, 7).masked_fill(hidden(), value)


@pytest.mark.parametrize(
    ("function", "mask"),
    [
        (lambda q, k, v, m: (q @ k.mT + m).softmax(-1) @ v, added(-math.inf)),
        (lambda q, k, v, m: (m + q @ k.mT * 0.5).softmax(-1) @ v, added(LOWEST)),
        (lambda q, k, v, m: (q @ k.mT + m).softmax(-1) @ v, draw(1, 3, 5, 7)),
        (lambda q, k, v, m: (q @ k.mT + m).softmax(-1) @ v, added(math.inf)),
        (lambda q, k, v, m: (q @ k.mT + m).softmax(-1) @ v, added(math.nan)),
        (lambda q, k, v, m: (q @ k.mT).masked_fill(m, -math.inf).softmax(-1) @ v, hidden()),
        (lambda q, k, v, m: (q @ k.mT).masked_fill(m, LOWEST).softmax(-1) @ v, hidden()),
        (lambda q, k, v, m: (q @ k.mT).masked_fill(m, -math.inf).softmax(-1) @ v, hidden()[0, 0]),
        (lambda q, k, v, m: (q @ k.mT).masked_fill(m[..., :1], LOWEST).softmax(-1) @ v, hidden()),
        (lambda q, k, v, m: torch.where(m, q @ k.mT, -math.inf).softmax(-1) @ v, ~hidden()),
        (lambda q, k, v, m: torch.where(m, q @ k.mT, LOWEST).softmax(-1) @ v, ~hidden()),
        (lambda q, k, v, m: (q @ k.mT + torch.where(m, 0.0, LOWEST)).softmax(-1) @ v, ~hidden()),
    ],
    ids=[
        "added_inf", "added_lowest", "added_numbers", "added_plus_inf", "added_nan", "filled_inf",
        "filled_lowest", "filled_square", "filled_whole_rows", "where_inf", "where_lowest",
        "chosen",
    ],
)  # fmt: skip
def test_masked_rows_are_the_same_also_where_no_key_is_left(
    export: Any, function: Any, mask: Tensor
) -> None:
    exported = export(function, *qkv(), mask)
    assert changed(exported) == ("1 attentions became one operator each",)
    nothing, everything = torch.ones_like(mask), torch.zeros_like(mask)
    if mask.dtype is not torch.bool:
        nothing, everything = mask.roll(1, -2), mask * 0
    for other in (nothing, everything):
        require_close(exported, *qkv(), other)


def test_a_mask_in_bfloat16(export: Any) -> None:
    lowest = torch.finfo(torch.bfloat16).min
    args = (*(x.bfloat16() for x in qkv()), hidden())
    exported = export(lambda q, k, v, m: (q @ k.mT).masked_fill(m, lowest).softmax(-1) @ v, *args)
    assert changed(exported) == ("1 attentions became one operator each",)


def test_a_mask_seen_to_be_finite_costs_no_look_at_its_rows(export: Any) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return (q @ k.mT + torch.where(m, torch.zeros(()), LOWEST)).softmax(-1) @ v

    exported = export(function, *qkv(), ~hidden())
    changed(exported)
    assert "all.dim" not in exported.ops()


@pytest.mark.parametrize("value", [-math.inf, LOWEST])
@pytest.mark.parametrize("way", ["added", "filled"])
def test_a_constant_causal_mask_ends_as_a_flag(export: Any, value: float, way: str) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        later = torch.ones(5, 5, dtype=torch.bool).triu(1)
        if way == "added":
            return (q @ k.mT + torch.zeros(5, 5).masked_fill(later, value)).softmax(-1) @ v
        return (q @ k.mT).masked_fill(later, value).softmax(-1) @ v

    exported = export(function, *qkv(keys=5))
    changed(exported)
    run_passes(exported.program, [("fold", fold_constants), ("masks", simplify_masks)])
    require_close(exported, *qkv(keys=5))
    assert exported.node(SDPA).args[3:] == (None, 0.0, True)


def test_layers_share_the_mask_that_is_made(export: Any) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        for _ in range(3):
            q = (q @ k.mT).masked_fill(m, -math.inf).softmax(-1) @ v
        return q

    mask = hidden()
    mask[0, 0, 1, 3] = False
    exported = export(function, *qkv(), mask)
    assert changed(exported) == ("3 attentions became one operator each",)
    assert exported.ops().count("logical_not.default") == 1
    assert exported.ops().count("all.dim") == 1


def test_the_transpose_of_the_keys_goes_with_the_pair(export: Any) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.permute(0, 2, 3, 1)).softmax(-1) @ v

    exported = export(function, draw(2, 3, 5, 4), draw(2, 7, 3, 4), draw(2, 3, 7, 4))
    changed(exported)
    run_passes(exported.program, [("cancel_pairs", cancel_pairs)])
    require_close(exported, *exported.args)
    assert exported.ops() == ["permute.default", SDPA]


def both(p: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return p @ v, p


STAYS: dict[str, tuple[Callable[..., Any], str]] = {
    "probabilities_returned": (
        lambda q, k, v: both((q @ k.mT).softmax(-1), v),
        "read elsewhere",
    ),
    "scores_returned": (
        lambda q, k, v: (lambda s: (s.softmax(-1) @ v, s))(q @ k.mT),
        "read elsewhere",
    ),
    "over_queries": (lambda q, k, v: (q @ k.mT).softmax(-2) @ v, "over dimension -2"),
    "over_heads": (lambda q, k, v: (q @ k.mT).softmax(1) @ v, "over dimension 1"),
    "negative_scale": (lambda q, k, v: (q @ k.mT * -0.5).softmax(-1) @ v, "no positive number"),
    "scale_of_rows": (
        lambda q, k, v: (q @ k.mT * q.sum(-1, True)).softmax(-1) @ v,
        "no positive number",
    ),
    "scale_after_mask": (
        lambda q, k, v: ((q @ k.mT + v.sum()[None, None]) * 0.5).softmax(-1) @ v,
        "scaled after they are masked",
    ),
    "rounded": (
        lambda q, k, v: (q @ k.mT).half().float().softmax(-1) @ v,
        "rounds the scores",
    ),
    "tanh": (lambda q, k, v: (q @ k.mT).tanh().softmax(-1) @ v, "stands between"),
    "one_head_of_keys": (lambda q, k, v: (q @ k[:, :1].mT).softmax(-1) @ v, "differ in batch"),
    "no_product": (lambda q, k, v: (q + k.sum()).softmax(-1) @ v[..., :4, :], "not of a product"),
    "some_other_number": (
        lambda q, k, v: (q @ k.mT).masked_fill(q[..., :1] > 0, -1e9).softmax(-1) @ v,
        "neither -inf nor the lowest",
    ),
    "two_masks": (
        lambda q, k, v: (q @ k.mT + q[..., :1] + q[..., 1:2]).softmax(-1) @ v,
        "masked twice",
    ),
    "three_dimensional_mask": (
        lambda q, k, v: (q @ k.mT + q[0, ..., :1]).softmax(-1) @ v,
        "3 dimensions",
    ),
    "weighted_mask": (
        lambda q, k, v: torch.add(q @ k.mT, q[..., :1], alpha=2).softmax(-1) @ v,
        "scales the mask",
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_only_looks_like_attention_stays(export: Any, name: str) -> None:
    function, reason = STAYS[name]
    exported = export(function, *qkv())
    notes = changed(exported)
    assert len(notes) == 1
    assert reason in notes[0]
    assert SDPA not in exported.ops()


def test_active_dropout_stays(export: Any) -> None:
    exported = export(lambda q, k, v: F.dropout((q @ k.mT).softmax(-1), 0.5, True) @ v, *qkv())
    assert written_out_attention(exported.program) == ()


def test_an_empty_batch_stays(export: Any) -> None:
    assert "empty" in changed(export(attend, *qkv(batch=0)))[0]


@pytest.mark.parametrize("fill", [False, True])
def test_a_mask_in_float16_stays(export: Any, fill: bool) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        lowest = torch.finfo(torch.float16).min
        scores = q @ k.mT
        masked = scores.masked_fill(m, lowest) if fill else scores + torch.where(m, lowest, 0.0)
        return masked.to(q.dtype).softmax(-1) @ v

    args = tuple(x.half() for x in qkv())
    exported = export(function, *args, hidden())
    assert SDPA not in exported.ops()
    notes = written_out_attention(exported.program)
    assert len(notes) == 1
    assert SDPA not in exported.ops()


def test_a_mask_that_is_a_weight_is_looked_at_in_each_call(export: Any) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return (q @ k.mT + m).softmax(-1) @ v

    exported = export(function, *qkv(), m=nn.Parameter(torch.zeros(5, 7)))
    changed(exported)
    with torch.no_grad():
        exported.program.state_dict["m"][2] = -math.inf
        exported.module.m[2] = -math.inf
    require_close(exported, *qkv())
