"""Models fused with open sizes: one program for every size that was asked for, the original for
all else.
"""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
import transformers as tf
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.functional import gelu
from torch.utils import _pytree as pytree

BATCH, SEQ = Dim("batch", min=0, max=8), Dim("seq", min=1, max=64)
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 96,
}


class Block(nn.Module):
    """Folds batch and time for the linear and unfolds them for the norm."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(12, 12), nn.LayerNorm(12)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        y = gelu(self.fc(x.reshape(batch * time, width))).reshape(batch, time, width)
        out: Tensor = self.norm(x + y)
        return out


def test_both_sizes_may_be_none(fuse_all: Any) -> None:
    """A view that divides a dimension cannot leave a size to be worked out of no elements."""
    model, auto = Block().eval(), {0: Dim.AUTO, 1: Dim.AUTO}
    found = fuse_all(model, (torch.randn(2, 7, 12),), {}, {"x": auto})
    for size in ((0, 0), (3, 0), (0, 5), (1, 1), (4, 6)):
        _equal(found.module, model, torch.randn(*size, 12))
    assert found.module.fallbacks == 0


class Scores(nn.Module):
    """Rows whose length is open, under a mask of another shape."""

    def forward(self, scores: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        masked = scores * 0.125 + mask
        return masked.softmax(-1), (masked * 2).amax(-1, keepdim=True)


def _bert() -> nn.Module:
    return tf.BertModel(tf.BertConfig(**TEXT, max_position_embeddings=80))


def _llama() -> nn.Module:
    return tf.LlamaModel(tf.LlamaConfig(**TEXT, num_key_value_heads=2, use_cache=False))


def _equal(module: nn.Module, model: nn.Module, *args: Any, **kwargs: Any) -> None:
    with torch.no_grad():
        outs, wanted = (pytree.tree_leaves(m(*args, **kwargs)) for m in (module, model))
    assert len(outs) == len(wanted)
    for out, want in zip(outs, wanted, strict=True):
        assert out.stride() == want.stride()
        torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-5)


SIZES = [*itertools.product((0, 1, 3, 8), (1, 7, 64)), (2, 16), (4, 33)]


@pytest.mark.parametrize("example", [(1, 7), (4, 12), (3, 3), (2, 1)])
def test_one_program_serves_every_size(fuse_all: Any, example: tuple[int, int]) -> None:
    model = Block().eval()
    found = fuse_all(model, (torch.randn(*example, 12),), {}, {"x": {0: BATCH, 1: SEQ}})
    assert any("add_layer_norm" in ways[0].plan.rule for ways in found.places)
    for batch, seq in SIZES:
        _equal(found.module, model, torch.randn(batch, seq, 12))
    assert found.module.fallbacks == 0


@pytest.mark.parametrize(("name", "make"), [("bert", _bert), ("llama", _llama)])
def test_transformers_with_open_batch_and_sequence(fuse_all: Any, name: str, make: Any) -> None:
    torch.manual_seed(0)
    model = make().eval()
    ids = torch.randint(3, 96, (2, 11))
    found = fuse_all(model, (), {"input_ids": ids}, {"input_ids": {0: BATCH, 1: SEQ}})
    rules = {rule for ways in found.places for rule in ways[0].plan.rule.split("+")}
    wanted = {"bert": {"add_layer_norm", "gelu_residual"}, "llama": {"rms_norm", "rope"}}
    assert wanted[name] <= rules
    for batch, seq in SIZES:
        if batch:
            _equal(found.module, model, input_ids=torch.randint(3, 96, (batch, seq)))
    assert found.module.fallbacks == 0


def test_an_empty_batch_that_eager_refuses_is_left_to_it(fuse_all: Any) -> None:
    """Its attention views with a size of -1, which no one can tell of an empty tensor."""
    model, ids = _bert().eval(), torch.randint(3, 96, (2, 11))
    shapes = {"input_ids": {0: BATCH, 1: SEQ}}
    module = fuse_all(model, (), {"input_ids": ids}, shapes).module
    with pytest.raises(RuntimeError, match="ambiguous") as own:
        model(input_ids=ids[:0])
    warns = pytest.warns(UserWarning, match="is 0, the program was captured for 1 to 8")
    with warns, pytest.raises(RuntimeError, match="ambiguous") as ours:
        module(input_ids=ids[:0])
    assert str(own.value) == str(ours.value)


def test_rows_of_open_length(fuse_all: Any) -> None:
    model, keys = Scores().eval(), Dim("keys", min=1, max=300)
    example = (torch.randn(2, 4, 5, 9), torch.randn(2, 1, 1, 9))
    shapes = {"scores": {0: BATCH, 2: SEQ, 3: keys}, "mask": {0: BATCH, 3: keys}}
    found = fuse_all(model, example, {}, shapes)
    assert found.places
    for batch, queries, length in ((2, 5, 9), (1, 1, 1), (3, 7, 257), (0, 2, 4), (8, 64, 30)):
        scores, mask = torch.randn(batch, 4, queries, length), torch.randn(batch, 1, 1, length)
        _equal(found.module, model, scores, mask)
    assert found.module.fallbacks == 0


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        ((9, 7), "dimension 0 of 'x' is 9, the program was captured for 0 to 8"),
        ((2, 65), "dimension 1 of 'x' is 65, the program was captured for 1 to 64"),
        ((2, 0), "dimension 1 of 'x' is 0, the program was captured for 1 to 64"),
    ],
)
def test_a_size_beyond_the_range_runs_the_original(
    fuse_all: Any, size: tuple[int, int], reason: str
) -> None:
    model = Block().eval()
    module = fuse_all(model, (torch.randn(2, 7, 12),), {}, {"x": {0: BATCH, 1: SEQ}}).module
    x = torch.randn(*size, 12)
    with pytest.warns(UserWarning, match=reason):
        out = module(x)
    torch.testing.assert_close(out, model(x))
    assert module.fallbacks == 1
    module(torch.randn(2, 3, 12))
    assert module.fallbacks == 1


class Pair(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (x + y).sigmoid() * 2


def test_sizes_that_were_one_must_stay_one(fuse_all: Any) -> None:
    model, x, y = Pair().eval(), torch.randn(3, 5), torch.randn(3, 5)
    auto = {0: Dim.AUTO, 1: Dim.AUTO}
    module = fuse_all(model, (x, y), {}, {"x": auto, "y": auto}).module
    _equal(module, model, torch.randn(7, 2), torch.randn(7, 2))
    assert module.fallbacks == 0
    x, y = torch.randn(7, 2), torch.randn(1, 2)
    assert module.refusal((x, y), {}) == "dimension 0 of 'y' is 1, dimension 0 of 'x' is 7"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        _equal(module, model, x, y)
    assert module.fallbacks == 1


class Prefix(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out: Tensor = (x[: y.shape[0]] + y).relu() * 3
        return out


def test_an_inequality_of_the_capture_is_guarded(fuse_all: Any) -> None:
    model, auto = Prefix().eval(), {0: Dim.AUTO}
    example = (torch.randn(6, 4), torch.randn(3, 4))
    module = fuse_all(model, example, {}, {"x": auto, "y": auto}).module
    _equal(module, model, torch.randn(9, 4), torch.randn(8, 4))
    assert module.fallbacks == 0
    said = module.refusal((torch.randn(2, 4), torch.randn(3, 4)), {})
    assert "break a condition" in said
    assert "dimension 0 of 'y'" in said


class OfOne(nn.Module):
    """What torch.export cannot see: it traces as if open sizes were 2 or more."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.exp() + 1
        return y.squeeze(0) if x.shape[0] == 1 else y * 2


def test_a_branch_on_a_size_of_one_is_left_to_eager(fuse_all: Any) -> None:
    model = OfOne().eval()
    module = fuse_all(model, (torch.randn(4, 6),), {}, {"x": {0: Dim("rows", min=0)}}).module
    _equal(module, model, torch.randn(3, 6))
    assert module.fallbacks == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for rows in (1, 0):
            _equal(module, model, torch.randn(rows, 6))
    assert module.fallbacks == 2


def test_another_layout_at_open_sizes_runs_the_original(fuse_all: Any) -> None:
    model = Block().eval()
    module = fuse_all(model, (torch.randn(2, 7, 12),), {}, {"x": {0: BATCH, 1: SEQ}}).module
    strided = torch.randn(3, 5, 24)[..., ::2]
    assert "strides (120, 24, 2)" in module.refusal((strided,), {})
    whole = torch.randn(6, 9, 12)
    assert module.refusal((whole[2:4],), {}) == ""


def test_a_transposed_example_stays_transposed_at_every_size(fuse_all: Any) -> None:
    model, auto = Block().eval(), {0: Dim.AUTO, 1: Dim.AUTO}
    module = fuse_all(model, (torch.randn(4, 5, 12).transpose(0, 1),), {}, {"x": auto}).module
    _equal(module, model, torch.randn(7, 3, 12).transpose(0, 1))
    assert module.fallbacks == 0
    assert "with strides" in module.refusal((torch.randn(7, 3, 12),), {})
