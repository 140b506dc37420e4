"""Models from the user's own code: what is accepted, what is said of the rest, what is left
behind.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from planner.sources.load import UnknownModel, UnusedOption, load_subject
from planner.sources.options import SourceOptions
from planner.sources.python import ModelNotBuilt
from planner.sources.subject import Subject

pytestmark = pytest.mark.usefixtures("project")


def _load(text: str, **options: object) -> Subject:
    return load_subject(text, SourceOptions(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["make", "Net", "NET"])
def test_a_builder_a_class_and_a_module_are_models(project: Path, name: str) -> None:
    subject = _load(f"{project}/model.py:{name}")
    assert type(subject.module).__name__ == "Net"
    assert not subject.module.training
    assert subject.kwargs["x"].shape == (1, 16)


def test_an_importable_module_is_a_source() -> None:
    subject = _load("model:make")
    assert subject.name == "model:make"
    assert isinstance(subject.module, nn.Module)
    del sys.modules["model"], sys.modules["sibling"]


def test_the_builders_inputs_are_taken() -> None:
    subject = _load("model.py:with_inputs")
    assert torch.equal(subject.args[0], torch.ones(2, 16))
    assert subject.kwargs["scale"].item() == 2.0
    assert len(subject.batches) == 1


def test_a_dtype_casts_the_builders_floating_inputs_too() -> None:
    subject = _load("model.py:with_inputs", dtype="bfloat16")
    assert subject.module.linear.weight.dtype is torch.bfloat16
    assert subject.args[0].dtype is torch.bfloat16


def test_a_module_found_in_the_users_code_is_not_changed() -> None:
    subject = _load("model.py:NET", dtype="float16")
    owner = sys.modules[type(subject.module).__module__]
    assert owner.NET.training
    assert owner.NET.linear.weight.dtype is torch.float32


def test_the_same_seed_builds_the_same_weights_and_the_random_state_stays() -> None:
    before = torch.get_rng_state()
    one, two = (_load("model.py:make", seed=7).module.linear.weight for _ in range(2))
    assert torch.equal(one, two)
    assert not torch.equal(one, _load("model.py:make", seed=8).module.linear.weight)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_search_path_is_put_back() -> None:
    before = list(sys.path)
    _load("model.py:make")
    assert sys.path == before


def test_the_files_name_does_not_shadow_an_installed_module(project: Path) -> None:
    (project / "json.py").write_text((project / "model.py").read_text())
    import json

    _load("json.py:make")
    assert sys.modules["json"] is json


@pytest.mark.parametrize("name", ["raises", "lacks", "broken"])
def test_a_failed_import_leaves_nothing_behind(name: str) -> None:
    path, modules = list(sys.path), set(sys.modules)
    with pytest.raises(ModelNotBuilt):
        _load(f"{name}.py:make")
    assert sys.path == path
    assert {m for m in set(sys.modules) - modules if "torch" not in m} == set()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nowhere.py:make", "no such file"),
        ("model.py:mak", "Did you mean 'make'"),
        ("model.py:zzz", "It defines: Net, make"),
        ("model.py:SIZE", "is of type int"),
        ("model.py:needs", r"needs arguments \(width\)"),
        ("model.py:fails", r"model\.py:26: ValueError: no such weights"),
        ("model.py:nonsense", "returned int; it should return"),
        ("model.py:pair", "returned 2 values"),
        ("model.py:args_not_tuple", r"written \(x,\)"),
        ("model.py:kwargs_not_dict", "kwargs that are not a dict"),
        ("model.py:module_missing", "returned a str as the module"),
        ("broken.py:make", r"broken\.py:3: SyntaxError"),
        ("raises.py:make", r"raises\.py:3: ZeroDivisionError"),
        ("lacks.py:make", r"lacks\.py:2: ModuleNotFoundError.*no_such_package_at_all"),
        ("no_such_package_at_all:make", "no module 'no_such_package_at_all'"),
    ],
)
def test_a_mistake_is_one_message_with_the_place(text: str, said: str) -> None:
    with pytest.raises(ModelNotBuilt, match=said) as caught:
        _load(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["bert", "timm:resnet50", "model.pt2", "", ":make", "model.py:", "model.onnx:a"]
)
def test_an_unknown_form_lists_the_known_ones(text: str) -> None:
    with pytest.raises((UnknownModel, ModelNotBuilt)) as caught:
        _load(text)
    if isinstance(caught.value, UnknownModel):
        assert "FILE.py:NAME" in str(caught.value)


def test_a_file_without_a_name_says_how_to_add_it() -> None:
    with pytest.raises(UnknownModel, match=r"model\.py:NAME"):
        _load("model.py")


@pytest.mark.parametrize(
    "options", [{"config": Path("c.json")}, {"settings": (("num_hidden_layers", 2),)}]
)
def test_hf_options_are_refused_elsewhere(options: dict[str, object]) -> None:
    with pytest.raises(UnusedOption, match="hf:"):
        _load("model.py:make", **options)


def test_inputs_are_refused_where_the_builder_returns_its_own() -> None:
    with pytest.raises(UnusedOption, match="returns its own inputs"):
        _load("model.py:with_inputs", inputs_file=Path("a.npz"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch": 8}, "drop --batch, or"),
        ({"seq": 8, "image": 32}, "drop --seq and --image, or"),
        ({"mask": "full", "batch": 1, "seq": 8}, "drop --mask, --batch and --seq, or"),
    ],
)
def test_sizes_are_refused_where_the_builder_returns_its_own_inputs(
    options: dict[str, object], said: str
) -> None:
    with pytest.raises(UnusedOption, match=said):
        _load("model.py:with_inputs", **options)


@pytest.mark.parametrize("name", ["batch", "seq", "image"])
def test_sizes_are_refused_beside_real_data(name: str) -> None:
    with pytest.raises(UnusedOption, match=f"gives the whole call: drop --{name}\\."):
        _load("model.py:make", inputs_file=Path("a.npz"), **{name: 8})
