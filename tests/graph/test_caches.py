"""Caches of transformers taken apart and put together again."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from transformers import DynamicCache, GPT2Config, GPT2Model, Mamba2Config, Mamba2ForCausalLM

import planner
from planner.graph.containers import register_containers


@pytest.fixture
def mamba() -> Mamba2ForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 16}
    small = {"state_size": 8, "n_groups": 1, "chunk_size": 4, "vocab_size": 64}
    return Mamba2ForCausalLM(Mamba2Config(**sizes, **small)).eval()


def _ids(length: int) -> Tensor:
    return torch.randint(3, 64, (2, length))


def _cache(result: Any) -> Any:
    """Releases of transformers name it differently."""
    return result.get("cache") if "cache" in result else result["cache_params"]


def _rebuilt(cache: Any) -> tuple[list[Tensor], Any]:
    """Through JSON, as a file keeps it."""
    register_containers(cache)
    leaves, spec = pytree.tree_flatten(cache)
    read = pytree.treespec_loads(pytree.treespec_dumps(spec))
    assert read == spec
    return leaves, pytree.tree_unflatten([leaf.clone() for leaf in leaves], read)


@torch.no_grad()
def test_states_of_linear_attention_survive(mamba: Mamba2ForCausalLM) -> None:
    before = _cache(mamba(_ids(10)))
    leaves, after = _rebuilt(before)
    assert len(leaves) == 4  # a convolution's and a recurrent one for each layer
    assert type(after) is DynamicCache
    assert [type(layer) for layer in after.layers] == [type(layer) for layer in before.layers]
    for old, new in zip(before.layers, after.layers, strict=True):
        assert vars(old).keys() == vars(new).keys()
        assert (old.dtype, old.device) == (new.dtype, new.device)
        assert old.has_previous_state == new.has_previous_state


@torch.no_grad()
def test_a_cache_put_together_again_goes_on_as_the_first_would(mamba: Mamba2ForCausalLM) -> None:
    prompt, token = _ids(10), _ids(1)
    first = mamba(prompt)
    _, after = _rebuilt(_cache(first))
    name = next(key for key in ("cache", "cache_params") if key in first)
    on_it = mamba(token, **{name: after}).logits
    assert torch.equal(on_it, mamba(token, **{name: copy.deepcopy(_cache(first))}).logits)
    assert not torch.allclose(on_it, mamba(token).logits)


@torch.no_grad()
def test_a_model_that_returns_states_is_captured(mamba: Mamba2ForCausalLM) -> None:
    ids = _ids(10)
    program = planner.capture(mamba, (ids,)).program
    found, wanted = program.module()(ids), mamba(ids)
    torch.testing.assert_close(found.logits, wanted.logits)
    torch.testing.assert_close(
        pytree.tree_leaves(_cache(found)), pytree.tree_leaves(_cache(wanted))
    )


@torch.no_grad()
def test_keys_and_values_are_left_to_transformers() -> None:
    config = GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=64)
    cache = GPT2Model(config).eval()(_ids(5)).past_key_values
    leaves, after = _rebuilt(cache)
    assert "states" not in json.dumps(pytree.tree_flatten(cache)[1].context)
    assert len(leaves) == 4
    assert torch.equal(after.layers[1].values, cache.layers[1].values)
