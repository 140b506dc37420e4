"""transformers models: names, configurations, checkpoints and main inputs, without a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from planner.errors import EnvironmentLacks
from planner.sources.hf import BadConfiguration, TooLarge
from planner.sources.load import load_subject
from planner.sources.made_inputs import BadInputs
from planner.sources.options import SourceOptions, parse_input, parse_setting
from planner.sources.subject import Subject
from planner.sources.trial import DoesNotRun, run_once

TINY = (
    "hidden_size=32",
    "num_hidden_layers=1",
    "num_attention_heads=2",
    "intermediate_size=64",
)
TINY_TEXT = (*TINY, "vocab_size=99")
TINY_CLIP = tuple(f"{side}_config.{pair}" for side in ("text", "vision") for pair in TINY)


def _load(text: str, *settings: str, **options: Any) -> Subject:
    pairs = tuple(map(parse_setting, settings))
    return load_subject(text, SourceOptions(settings=pairs, **options))


@pytest.mark.parametrize(
    ("name", "cls"),
    [("bert", "BertModel"), ("BertForMaskedLM", "BertForMaskedLM"), ("llama", "LlamaModel")],
)
def test_a_type_gives_the_base_model_and_a_class_itself(name: str, cls: str) -> None:
    subject = _load(f"hf:{name}", *TINY_TEXT)
    assert type(subject.module).__name__ == cls
    assert not subject.module.training
    assert subject.module.config.hidden_size == 32


def test_main_inputs_only_unless_a_mask_is_asked_for() -> None:
    assert list(_load("hf:bert", *TINY_TEXT).kwargs) == ["input_ids"]


def test_ids_leave_out_the_special_ones() -> None:
    ids = _load("hf:bert", *TINY_TEXT, "pad_token_id=5", batch=64).kwargs["input_ids"]
    assert ids.shape == (64, 128)
    assert set(ids.unique().tolist()) == set(range(99)) - {5}


def test_the_sequence_stops_where_the_positions_do() -> None:
    subject = _load("hf:bert", *TINY_TEXT, "max_position_embeddings=24")
    assert subject.kwargs["input_ids"].shape == (1, 24)


def test_a_full_mask_is_all_ones() -> None:
    mask = _load("hf:bert", *TINY_TEXT, batch=3, mask="full").kwargs["attention_mask"]
    assert torch.equal(mask, torch.ones(3, 128, dtype=torch.int64))


@pytest.mark.parametrize("batch", [1, 8])
def test_a_padded_mask_ends_in_zeros_at_ragged_lengths(batch: int) -> None:
    mask = _load("hf:bert", *TINY_TEXT, batch=batch, mask="padded").kwargs["attention_mask"]
    assert bool((mask[:, 1:] <= mask[:, :-1]).all())  # once padding starts it stays
    lengths = mask.sum(1)
    assert int(lengths.min()) >= 64
    assert int(lengths.min()) < 128
    assert batch == 1 or (int(lengths[0]) == 128 and len(lengths.unique()) > 2)


def test_a_mask_is_refused_where_there_are_no_ids() -> None:
    with pytest.raises(BadInputs, match="--mask full"):
        _load("hf:vit", *TINY, mask="full")


@pytest.mark.parametrize(
    ("text", "settings", "shapes"),
    [
        (
            "hf:t5",
            ("d_model=32", "d_ff=64", "num_layers=1", "num_heads=2", "vocab_size=99"),
            {"input_ids": (2, 128), "decoder_input_ids": (2, 128)},
        ),
        ("hf:vit", TINY, {"pixel_values": (2, 3, 224, 224)}),
        ("hf:vit", (*TINY, "image_size=[32,48]"), {"pixel_values": (2, 3, 32, 48)}),
        (
            "hf:whisper",
            (
                "d_model=32",
                "encoder_layers=1",
                "decoder_layers=1",
                "encoder_attention_heads=2",
                "decoder_attention_heads=2",
                "max_source_positions=20",
            ),
            {"input_features": (2, 80, 40), "decoder_input_ids": (2, 128)},
        ),
        ("hf:wav2vec2", TINY, {"input_values": (2, 16_000)}),
        (
            "hf:clip",
            TINY_CLIP,
            {"input_ids": (2, 77), "pixel_values": (2, 3, 224, 224)},
        ),
    ],
)
def test_main_inputs_run(
    text: str, settings: tuple[str, ...], shapes: dict[str, tuple[int, ...]]
) -> None:
    if text == "hf:wav2vec2":
        settings = (*settings, "num_conv_pos_embedding_groups=2")
    subject = _load(text, *settings, batch=2)
    assert {name: tuple(value.shape) for name, value in subject.kwargs.items()} == shapes
    run_once(subject)


def test_an_image_size_is_taken_from_the_option() -> None:
    subject = _load("hf:vit", *TINY, "image_size=64", image=64)
    assert subject.kwargs["pixel_values"].shape == (1, 3, 64, 64)


@pytest.mark.parametrize(
    ("text", "settings", "key"),
    [
        ("hf:vit", TINY, "image_size"),
        ("hf:clip", TINY_CLIP, "vision_config.image_size"),
    ],
)
def test_an_image_of_another_size_fails_with_the_setting_that_helps(
    text: str, settings: tuple[str, ...], key: str
) -> None:
    subject = _load(text, *settings, image=32)
    with pytest.raises(DoesNotRun, match=f"{key} is 224: add --set {key}=32"):
        run_once(subject)


def test_an_input_replaces_a_main_one_by_name() -> None:
    spec = parse_input("decoder_input_ids=int64[1,7]")
    settings = ("d_model=32", "num_layers=1", "num_heads=2", "vocab_size=99")
    kwargs = _load("hf:t5", *settings, inputs=(spec,)).kwargs
    assert kwargs["decoder_input_ids"].shape == (1, 7)
    assert kwargs["input_ids"].shape == (1, 128)


def test_a_half_model_keeps_the_rotary_tables_in_float32() -> None:
    module = _load("hf:llama", *TINY_TEXT, dtype="bfloat16").module
    assert module.embed_tokens.weight.dtype is torch.bfloat16
    assert module.rotary_emb.inv_freq.dtype is torch.float32


def test_the_seed_fixes_the_weights() -> None:
    one, two, three = (
        _load("hf:bert", *TINY_TEXT, seed=s).module.embeddings.word_embeddings.weight
        for s in (1, 1, 2)
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, three)


def test_a_configuration_file_is_the_start_and_settings_lie_over_it(tmp_path: Path) -> None:
    content = {"model_type": "bert", "hidden_size": 16, "num_attention_heads": 2, "vocab_size": 9}
    (tmp_path / "config.json").write_text(json.dumps(content))
    module = _load(
        "hf:bert", "hidden_size=32", "num_hidden_layers=1", config=tmp_path / "config.json"
    ).module
    assert (module.config.hidden_size, module.config.vocab_size) == (32, 9)


def test_a_checkpoint_folder_gives_its_own_class_weights_and_dtype(tmp_path: Path) -> None:
    saved = _load("hf:BertForMaskedLM", *TINY_TEXT, dtype="bfloat16", seed=5).module
    saved.save_pretrained(tmp_path)
    subject = _load(f"hf:{tmp_path}")
    assert type(subject.module).__name__ == "BertForMaskedLM"
    for name, value in saved.state_dict().items():
        assert torch.equal(subject.module.state_dict()[name], value), name
    assert subject.kwargs["input_ids"].shape == (1, 128)


def test_weights_that_a_checkpoint_lacks_are_noted(tmp_path: Path) -> None:
    _load("hf:BertForMaskedLM", *TINY_TEXT).module.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    content["architectures"] = ["BertForTokenClassification"]
    (tmp_path / "config.json").write_text(json.dumps(content))
    notes = _load(f"hf:{tmp_path}").notes
    assert any("2 weights are not in the checkpoint" in note for note in notes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hf:brt", "hf:bert"),
        ("hf:BertModle", "hf:BertModel"),
        ("hf:BertTokenizer", "not a model class"),
        ("hf:google/bert", "Nothing is downloaded"),
        ("hf:./nowhere", "no such folder"),
        ("hf:", "no such model type"),
    ],
)
def test_a_wrong_name_is_one_message(text: str, said: str) -> None:
    with pytest.raises(BadConfiguration, match=said):
        _load(text)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("num_layer=2", "no 'num_layer'.*Did you mean"),
        ("hidden_size=wide", "hidden_size"),
        ("num_attention_heads=7", "hf:bert"),
    ],
)
def test_a_wrong_setting_is_one_message(setting: str, said: str) -> None:
    with pytest.raises(BadConfiguration, match=said):
        _load("hf:bert", setting)


@pytest.mark.parametrize(
    ("content", "said"),
    [("{", "cannot be read"), ("[]", "one JSON object"), ('{"model_type": "gpt2"}', "of type")],
)
def test_a_wrong_configuration_file_is_one_message(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "c.json").write_text(content)
    with pytest.raises(BadConfiguration, match=said):
        _load("hf:bert", config=tmp_path / "c.json")


def test_a_folder_without_configuration_or_weights_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match="has no config"):
        _load(f"hf:{tmp_path}")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(BadConfiguration, match="hf:TYPE --config"):
        _load(f"hf:{tmp_path}")


def test_a_model_beyond_the_machines_memory_is_refused_before_it_is_built() -> None:
    with pytest.raises(TooLarge, match="billion parameters") as caught:
        _load("hf:llama", "hidden_size=65536", "intermediate_size=262144")
    assert isinstance(caught.value, EnvironmentLacks)


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    _load("hf:BertForMaskedLM", *TINY_TEXT)
    assert capfd.readouterr().out == ""
