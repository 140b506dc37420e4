"""Which named rule stands where in real architectures: every variant with its number of places, as
the model's own layers have it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as tf
from torch import nn

from fusion_kernels.rules import RULES
from planner.fusion.match import match_rules
from planner.passes.linear_bias import split_linear_bias
from planner.passes.runner import run_passes
from planner.pipeline import capture

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
TEXT = {**SIZES, "vocab_size": 128}
GROUPED = {**TEXT, "num_key_value_heads": 2}
IMAGE = {"image_size": 32, "patch_size": 8}
GPT = {"vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 4}
T5 = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 128}
SIDES = ("encoder", "decoder")


def _clip() -> nn.Module:
    text = {**TEXT, "max_position_embeddings": 32, "eos_token_id": 2, "bos_token_id": 1}
    return tf.CLIPModel(tf.CLIPConfig(text_config=text, vision_config={**SIZES, **IMAGE}))


def _whisper() -> nn.Module:
    sizes = {f"{side}_{what}": 2 for side in SIDES for what in ("layers", "attention_heads")}
    widths = {f"{side}_ffn_dim": 128 for side in SIDES}
    config = {"vocab_size": 128, "d_model": 64, "max_source_positions": 50, "pad_token_id": 0}
    return tf.WhisperModel(
        tf.WhisperConfig(**config, **sizes, **widths, bos_token_id=1, eos_token_id=2)
    )


def _mamba2() -> nn.Module:
    heads = {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1, "chunk_size": 8}
    config = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 128}
    return tf.Mamba2ForCausalLM(tf.Mamba2Config(**config, **heads))


def _ids() -> dict[str, Any]:
    return {"input_ids": torch.randint(3, 128, (2, 16))}


def _pairs() -> dict[str, Any]:
    return {**_ids(), "decoder_input_ids": torch.randint(3, 128, (2, 16))}


def _pixels() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


def _sounds() -> dict[str, Any]:
    return {
        "input_features": torch.randn(2, 80, 100),
        "decoder_input_ids": torch.ones(2, 16).long(),
    }


Made = tuple[Callable[[], nn.Module], Callable[[], dict[str, Any]]]
MODELS: dict[str, Made] = {
    "bert": (lambda: tf.BertModel(tf.BertConfig(**TEXT)), _ids),
    "gpt2": (lambda: tf.GPT2LMHeadModel(tf.GPT2Config(**GPT)), _ids),
    "gptj": (lambda: tf.GPTJForCausalLM(tf.GPTJConfig(**GPT, rotary_dim=8)), _ids),
    "bloom": (
        lambda: tf.BloomForCausalLM(
            tf.BloomConfig(vocab_size=128, hidden_size=64, n_layer=2, n_head=4)
        ),
        _ids,
    ),
    "llama": (lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**GROUPED)), _ids),
    "gemma2": (lambda: tf.Gemma2ForCausalLM(tf.Gemma2Config(**GROUPED, head_dim=16)), _ids),
    "qwen3": (lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**GROUPED, head_dim=16)), _ids),
    "mixtral": (
        lambda: tf.MixtralForCausalLM(tf.MixtralConfig(**GROUPED, num_local_experts=4)),
        _ids,
    ),
    "nemotron": (lambda: tf.NemotronForCausalLM(tf.NemotronConfig(**GROUPED)), _ids),
    "mamba2": (_mamba2, _ids),
    "t5": (lambda: tf.T5Model(tf.T5Config(**T5)), _pairs),
    "t5 gated": (lambda: tf.T5Model(tf.T5Config(**T5, feed_forward_proj="gated-gelu")), _pairs),
    "deberta-v2": (
        lambda: tf.DebertaV2Model(
            tf.DebertaV2Config(
                **TEXT, relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"]
            )
        ),
        _ids,
    ),
    "vit": (lambda: tf.ViTModel(tf.ViTConfig(**SIZES, **IMAGE)), _pixels),
    "dinov2": (lambda: tf.Dinov2Model(tf.Dinov2Config(**SIZES, **IMAGE)), _pixels),
    "convnext": (
        lambda: tf.ConvNextModel(
            tf.ConvNextConfig(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1])
        ),
        _pixels,
    ),
    "clip": (_clip, lambda: {**_ids(), **_pixels()}),
    "whisper": (_whisper, _sounds),
}

COUNTS: dict[str, dict[str, int]] = {
    "bert": {"three_embeddings_layer_norm": 1, "bias_add_layer_norm": 4, "bias_gelu": 2},
    "gpt2": {"two_embeddings_layer_norm": 1, "add_layer_norm": 4, "gelu_tanh": 2},
    "gptj": {"add_layer_norm": 2, "bias_gelu_tanh": 2, "rope_interleaved": 4},
    "bloom": {"bias_add_layer_norm": 4, "bias_gelu_tanh": 2, "masked_softmax": 2},
    "llama": {"rms_norm": 1, "add_rms_norm": 4, "rope": 4, "swiglu": 2},
    "gemma2": {
        "rms_norm_plus_one": 5,
        "add_rms_norm_plus_one": 4,
        "rope": 4,
        "capped_masked_softmax": 2,
        "geglu_tanh": 2,
        "softcap": 1,
    },
    "qwen3": {"rms_norm": 5, "add_rms_norm": 4, "rope": 4, "swiglu": 2},
    "mixtral": {"rms_norm": 1, "add_rms_norm": 4, "rope": 4, "swiglu": 2},
    "nemotron": {"add_layer_norm": 4, "rope": 4, "relu_squared": 2},
    # The skip D x stands where a layer scale would; the norm of groups is weighted after a view.
    "mamba2": {
        "rms_norm": 1,
        "add_rms_norm": 2,
        "unweighted_rms_norm": 2,
        "swiglu": 2,
        "layer_scale_residual": 2,
    },
    "t5": {"rms_norm": 2, "add_rms_norm": 10},
    "t5 gated": {"rms_norm": 2, "add_rms_norm": 10, "geglu_tanh": 4},
    "deberta-v2": {
        "two_embeddings_layer_norm": 1,
        "bias_add_layer_norm": 4,
        "bias_gelu": 2,
        "filled_softmax": 2,
    },
    "vit": {"add_layer_norm": 1, "bias_add_layer_norm": 4, "bias_gelu": 2},
    "dinov2": {"add_layer_norm": 1, "layer_scale_add_layer_norm": 4, "bias_gelu": 2},
    "convnext": {"permuted_layer_norm": 4, "permuted_layer_scale_residual": 5, "bias_gelu": 5},
    "clip": {
        "two_embeddings_layer_norm": 1,
        "add_layer_norm": 1,
        "bias_add_layer_norm": 7,
        "bias_quick_gelu": 4,
        "unit_norm": 2,
    },
    "whisper": {"add_layer_norm": 2, "bias_add_layer_norm": 10, "bias_gelu": 4},
}
"""The convolutional blocks of ConvNeXt norm without moving back, before a linear: no rule, but a
region. Norms that follow no addition of their own are single operators.
"""


@pytest.mark.parametrize("name", MODELS)
def test_every_place_of_a_named_rule_is_found(name: str) -> None:
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    program = capture(make().eval(), (), inputs()).program
    run_passes(program, (("split_linear_bias", split_linear_bias),))
    matches, _ = match_rules(program.graph, RULES)
    assert Counter(match.variant for match in matches) == COUNTS[name]
