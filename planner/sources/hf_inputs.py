"""The main inputs of a transformers model, made from its configuration.

What a bare forward call needs and no more: ids for text, pixels for images, samples or features
for audio, decoder ids for an encoder-decoder. `--mask` adds an attention mask.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from planner.sources.made_inputs import BadInputs, check_names, tensor_for
from planner.sources.options import InputSpec, SourceOptions
from planner.sources.place import floating_dtype
from planner.sources.subject import Batch

_SEQ = 128
_IMAGE = 224
_SAMPLES = 16_000  # one second at the 16 kHz that speech models are trained on


def make(module: nn.Module, options: SourceOptions) -> Batch:
    """One batch of keywords for `module`; `--input` adds to it or replaces by name.

    Sizes: batch 1, sequence 128 or what the positions allow, image and audio sizes from the
    configuration. With `--mask padded` the first row is full and the others end in padding, at
    lengths drawn between half and the whole; a single row ends after three quarters.

    Raises `BadInputs` for a main input of an unknown kind, or a mask where forward takes none.
    """
    draw = torch.Generator().manual_seed(options.seed)
    config: Any = module.config
    named = {spec.name: spec for spec in options.inputs}
    check_names(module, named)
    takes = inspect.signature(module.forward).parameters
    kwargs: dict[str, torch.Tensor] = {}
    for spec in (*_main(module, config, takes, options), *named.values()):
        if spec.name.endswith("input_ids"):
            kwargs[spec.name] = _ids(spec, config, draw)
        else:
            kwargs[spec.name] = tensor_for(spec, draw, _vocab(config))
    if options.mask != "none" and "attention_mask" not in named:
        kwargs["attention_mask"] = _mask(module, takes, kwargs, options, draw)
    return Batch((), kwargs)


def advice(module: nn.Module, options: SourceOptions) -> str:
    """What to try where the model fails on images of the size asked for; "" where it is the size
    of its configuration.
    """
    holder, vision = _vision(module.config)
    size = getattr(vision, "image_size", None)
    if options.image is None or size in (None, options.image):
        return ""
    key = f"{holder}image_size"
    return f"The model's {key} is {size}: add --set {key}={options.image}."


def _main(
    module: nn.Module, config: Any, takes: Any, options: SourceOptions
) -> Iterator[InputSpec]:
    given = {spec.name for spec in options.inputs}
    batch, seq = options.batch or 1, _sequence(config, options)
    real = str(floating_dtype(module) or torch.float32).removeprefix("torch.")
    for name in _main_names(module, config, takes):
        if name in given:
            continue
        if name.endswith("input_ids"):
            yield InputSpec(name, "int64", (batch, seq))
        elif name.startswith("pixel_values"):
            yield InputSpec(name, real, _pixels(config, batch, options))
        elif name in ("input_values", "input_features"):
            yield InputSpec(name, real, _audio(config, name, batch, options))
        else:
            raise BadInputs(
                f"{type(module).__name__} starts from '{name}', whose shape is not known; state it "
                f"with --input {name}=float32[1,16] or with --inputs FILE."
            )


def _main_names(module: nn.Module, config: Any, takes: Any) -> list[str]:
    main = str(getattr(module, "main_input_name", "input_ids"))
    names = [main if main in takes else next(iter(takes))]
    # a two-tower model takes both sides; a language model with an image token runs on text alone
    towers = hasattr(config, "vision_config") and hasattr(config, "text_config")
    speaks_of_images = any(key.startswith("image_token") for key in config.to_dict())
    if towers and not speaks_of_images and names == ["input_ids"] and "pixel_values" in takes:
        names.append("pixel_values")
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in takes:
        names.append("decoder_input_ids")
    return names


def _sequence(config: Any, options: SourceOptions) -> int:
    if options.seq is not None:
        return options.seq
    text = config.get_text_config()
    keys = ("max_position_embeddings", "n_positions", "max_target_positions")
    limits = (getattr(text, key, None) for key in keys)
    return min(_SEQ, *(limit for limit in limits if isinstance(limit, int) and limit > 0), _SEQ)


def _vocab(config: Any) -> int | None:
    size = getattr(config.get_text_config(), "vocab_size", None)
    return size if isinstance(size, int) else None


def _ids(spec: InputSpec, config: Any, draw: torch.Generator) -> torch.Tensor:
    """Random ids without the special ones: a padding or image id would change what is run."""
    vocab = _vocab(config) or 2
    settings = {**config.get_text_config().to_dict(), **config.to_dict()}
    special = {
        value
        for key, value in settings.items()
        if key.endswith(("token_id", "token_index")) and isinstance(value, int)
    }
    allowed = torch.tensor([i for i in range(vocab) if i not in special] or [0])
    picked = torch.randint(len(allowed), spec.shape, generator=draw)
    return allowed[picked].to(getattr(torch, spec.dtype))


def _vision(config: Any) -> tuple[str, Any]:
    """The configuration that speaks of images, with the dotted way to it."""
    for name in ("vision_config", "encoder"):
        if getattr(config, name, None):
            return f"{name}.", getattr(config, name)
    return "", config


def _pixels(config: Any, batch: int, options: SourceOptions) -> tuple[int, ...]:
    _, vision = _vision(config)
    size: Any = options.image or getattr(vision, "image_size", None) or _IMAGE
    if isinstance(size, dict):
        size = (size["height"], size["width"])
    height, width = size if isinstance(size, (tuple, list)) else (size, size)
    channels = getattr(vision, "num_channels", None) or 3
    frames = getattr(vision, "num_frames", None)
    middle = (frames,) if isinstance(frames, int) else ()
    return (batch, *middle, channels, height, width)


def _audio(config: Any, name: str, batch: int, options: SourceOptions) -> tuple[int, ...]:
    """Layouts: samples [batch, time]; Whisper [batch, mel, time]; spectrograms [batch, time,
    mel].
    """
    mel = getattr(config, "num_mel_bins", None) or getattr(config, "input_feat_per_channel", None)
    if mel is None:
        if name == "input_features":
            raise BadInputs(
                "the audio features of this model have no known shape; state it with --input "
                "input_features=float32[1,80,3000]."
            )
        return (batch, options.seq or _SAMPLES)
    if name == "input_values":
        return (batch, getattr(config, "max_length", None) or 1024, mel)
    positions = getattr(config, "max_source_positions", None)
    if positions is not None and hasattr(config, "num_conv_layers"):
        return (batch, options.seq or 1024, mel)
    return (batch, mel, 2 * positions if positions is not None else 3000)


def _mask(
    module: nn.Module,
    takes: Any,
    kwargs: dict[str, torch.Tensor],
    options: SourceOptions,
    draw: torch.Generator,
) -> torch.Tensor:
    ids = kwargs.get("input_ids")
    if "attention_mask" not in takes or ids is None or ids.ndim != 2:
        raise BadInputs(
            f"--mask {options.mask}: {type(module).__name__} does not take input_ids with an "
            "attention_mask."
        )
    rows, seq = ids.shape
    if options.mask == "full":
        return torch.ones(rows, seq, dtype=torch.int64)
    lengths = torch.randint(max(1, seq // 2), seq + 1, (rows,), generator=draw)
    lengths[0] = seq if rows > 1 else max(1, seq * 3 // 4)
    return (torch.arange(seq) < lengths[:, None]).to(torch.int64)
