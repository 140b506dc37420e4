"""`hf:TYPE` and `hf:DIR`: transformers models, from a configuration or a local checkpoint.

Nothing is downloaded. A TYPE gets random weights from its configuration.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch

from planner.errors import EnvironmentLacks, FuseplanError, MissingPackage
from planner.sources.options import SourceOptions
from planner.sources.subject import Built
from planner.sources.user_error import told


class BadConfiguration(FuseplanError):
    """The transformers type, folder, configuration file or a `--set` key is wrong."""


class PackageMissing(EnvironmentLacks):
    """The model type needs a package that transformers itself does not bring."""


class TooLarge(EnvironmentLacks):
    """The model's weights alone do not fit this machine's memory."""


def build(text: str, options: SourceOptions) -> Built:
    """The model in eval mode on CPU.

    `hf:TYPE` is a model type (`bert`, its base model) or a class (`BertForMaskedLM`); `hf:DIR` a
    folder with config.json and weights, built as the class that its configuration names.
    `--config` and `--set` change the configuration before the model is built.

    Raises `BadConfiguration` for a wrong name, folder, file or key, `TooLarge` when the weights
    exceed the machine's memory, `PackageMissing` when the type wants another package,
    `MissingPackage` without transformers.
    """
    try:
        import transformers
    except ImportError as error:
        raise MissingPackage("transformers", "hf", f"MODEL '{text}'") from error
    with _quiet(transformers):
        what = text.removeprefix("hf:")
        model_class = None if what.startswith((".", "/", "~")) else _class(transformers, what)
        if model_class is not None:
            return _random(model_class, what, options)
        folder = Path(what).expanduser()
        if what and folder.is_dir():
            return _checkpoint(transformers, folder, options)
        raise BadConfiguration(_unknown(transformers, what))


def _random(model_class: Any, what: str, options: SourceOptions) -> Built:
    changes = _changes(options)
    given_type = changes.pop("model_type", model_class.config_class.model_type)
    if given_type != model_class.config_class.model_type:
        raise BadConfiguration(
            f"--config {options.config} is of type '{given_type}', the model '{what}' of "
            f"'{model_class.config_class.model_type}'."
        )
    try:
        default = model_class.config_class()
        _check_keys(default, options)
        config = model_class.config_class(**changes)
    except FuseplanError:
        raise
    except Exception as error:  # configuration classes raise all kinds, some of them their own
        raise BadConfiguration(f"hf:{what}: no such configuration: {told(error)}") from error
    dtype = getattr(torch, options.dtype or "float32")
    _check_size(model_class, config, what, dtype)
    try:
        model = model_class._from_config(config, dtype=dtype)
    except ImportError as error:  # vision types may want timm or pillow
        raise PackageMissing(f"hf:{what} cannot be built: {told(error)}") from error
    except Exception as error:
        raise BadConfiguration(
            f"hf:{what} cannot be built from this configuration: {told(error)}"
        ) from error
    return Built(model.eval(), None, (f"{model_class.__name__} with random weights",))


def _checkpoint(transformers: Any, folder: Path, options: SourceOptions) -> Built:
    if not (folder / "config.json").is_file():
        raise BadConfiguration(f"hf:{folder}: the folder has no config.json.")
    weights = [*folder.glob("*.safetensors"), *folder.glob("*.bin")]
    if not weights:
        raise BadConfiguration(
            f"hf:{folder}: the folder has no weights. For random ones name the type: "
            f"hf:TYPE --config {folder / 'config.json'}."
        )
    try:
        read = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        _check_keys(read, options)
        config = type(read).from_dict(_merged(read.to_dict(), _changes(options)))
        named = (read.architectures or [None])[0]
        model_class = getattr(transformers, named or "", transformers.AutoModel)
        model, loading = model_class.from_pretrained(
            folder,
            config=config,
            dtype=getattr(torch, options.dtype) if options.dtype else "auto",
            local_files_only=True,
            output_loading_info=True,
        )
    except FuseplanError:
        raise
    except Exception as error:
        raise BadConfiguration(f"hf:{folder} cannot be loaded: {told(error)}") from error
    notes = [f"{type(model).__name__} from {folder}"]
    missing = sorted(loading.get("missing_keys") or ())
    if missing:
        notes.append(f"{len(missing)} weights are not in the checkpoint and random: {missing[0]} …")
    return Built(model.eval(), None, tuple(notes))


def _class(transformers: Any, what: str) -> Any | None:
    """The model class that a type or a class name stands for, None when it is neither."""
    from transformers.models.auto import modeling_auto

    if what.isidentifier() and hasattr(transformers, what):
        found = getattr(transformers, what)
        if getattr(found, "config_class", None) is not None and hasattr(found, "_from_config"):
            return found
        raise BadConfiguration(f"hf:{what}: transformers.{what} is not a model class.")
    tables = [modeling_auto.MODEL_MAPPING_NAMES]
    tables += [t for name, t in vars(modeling_auto).items() if name.endswith("_MAPPING_NAMES")]
    for table in tables:
        name = table.get(what) if hasattr(table, "get") else None
        if name is not None:
            return getattr(transformers, name if isinstance(name, str) else name[0], None)
    return None


def _unknown(transformers: Any, what: str) -> str:
    from transformers.models.auto import configuration_auto

    types = list(vars(configuration_auto)["CONFIG_MAPPING_NAMES"])
    if what in types:
        return f"hf:{what}: this transformers has a configuration of that type but no model."
    if "/" in what:
        return (
            f"hf:{what}: there is no such folder. Nothing is downloaded: give a local checkpoint "
            "folder, or a type such as hf:bert."
        )
    classes = [name for name in dir(transformers) if name.endswith(("Model", "LM"))]
    close = get_close_matches(what, [*types, *classes], n=3)
    meant = f" Did you mean {', '.join(f'hf:{name}' for name in close)}?" if close else ""
    return (
        f"hf:{what}: transformers has no such model type or class, and there is no such folder "
        f"here.{meant}"
    )


def _changes(options: SourceOptions) -> dict[str, Any]:
    """The configuration file's content with the `--set` pairs laid over it."""
    changes: dict[str, Any] = {}
    if options.config is not None:
        try:
            changes = json.loads(options.config.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise BadConfiguration(f"--config {options.config}: cannot be read: {error}") from error
        if not isinstance(changes, dict):
            raise BadConfiguration(f"--config {options.config}: should hold one JSON object.")
    for key, value in options.settings:
        nested = value
        for part in reversed(key.split(".")):
            nested = {part: nested}
        changes = _merged(changes, nested)
    return changes


def _merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    result = dict(under)
    for key, value in over.items():
        below = result.get(key)
        both = isinstance(below, dict) and isinstance(value, dict)
        result[key] = _merged(below, value) if both and isinstance(below, dict) else value
    return result


def _check_keys(config: Any, options: SourceOptions) -> None:
    """A misspelt key would be kept as an attribute that nothing reads."""
    for key, _ in options.settings:
        holder = config
        for part in key.split("."):
            if part != "attn_implementation" and not hasattr(holder, part):
                known = list(holder.to_dict()) if hasattr(holder, "to_dict") else []
                close = get_close_matches(part, known, n=3)
                meant = f" Did you mean {', '.join(close)}?" if close else ""
                kind = type(holder).__name__
                raise BadConfiguration(f"--set {key}: {kind} has no '{part}'.{meant}")
            holder = getattr(holder, part, None)


def _check_size(model_class: Any, config: Any, what: str, dtype: torch.dtype) -> None:
    try:
        with torch.device("meta"):
            parameters = sum(p.numel() for p in model_class._from_config(config).parameters())
    except Exception:  # a class that computes on values cannot be built without data; then no check
        return
    needed = parameters * dtype.itemsize
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        raise TooLarge(
            f"hf:{what} has {parameters / 1e9:.1f} billion parameters, {needed / 1e9:.0f} GB in "
            f"{str(dtype).removeprefix('torch.')}; this machine has {memory / 1e9:.0f} GB. "
            "Make it smaller (--set num_hidden_layers=2) or use --dtype bfloat16."
        )


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No warnings, loading tables or progress bars of transformers' own, settings put back
    after.
    """
    log = transformers.utils.logging
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()
