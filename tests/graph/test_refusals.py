"""What cannot be captured: one class a mistake, the advice and the user's line in its message."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import MambaConfig, MambaModel

import planner
from planner.errors import EXIT_WRONG_INPUT, FuseplanError
from planner.graph import errors
from planner.graph.errors import CaptureFailed, NoValues, TrainingMode, WrongInputs


class Gate(nn.Module):
    """Which path runs depends on a value."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x)
        if y.mean() > 0:
            return y + x
        return y * 0.5


class Sized(nn.Module):
    """A size depends on a value."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros(int(x.sum())).repeat(int(x.max()))


def line_of(text: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return 1 + next(index for index, line in enumerate(lines) if line.strip() == text)


def named_line(message: str) -> int:
    found = re.search(Path(__file__).name + r":(\d+)", message)
    assert found, message
    return int(found[1])


def test_training_mode_is_refused_with_the_call_that_mends_it() -> None:
    with pytest.raises(TrainingMode, match=r"Linear is in training mode.*model\.eval\(\)"):
        planner.capture(nn.Linear(4, 4), (torch.randn(2, 4),))


def test_a_branch_on_a_value_is_refused_with_the_line_of_the_if(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(CaptureFailed, match="depends on the value of a tensor") as caught:
        planner.capture(Gate().eval(), (torch.randn(2, 4),))
    assert named_line(str(caught.value)) == line_of("if y.mean() > 0:")
    assert capfd.readouterr() == ("", "")


def test_a_size_from_a_value_is_refused_with_its_line() -> None:
    with pytest.raises(CaptureFailed) as caught:
        planner.capture(Sized().eval(), (torch.tensor([1, 2]),))
    assert named_line(str(caught.value)) == line_of(
        "return torch.zeros(int(x.sum())).repeat(int(x.max()))"
    )


def test_a_wrong_shape_is_refused_with_the_line_that_fails() -> None:
    with pytest.raises(WrongInputs, match=r"Gate\.forward refuses .*2x5 and 4x4") as caught:
        planner.capture(Gate().eval(), (torch.randn(2, 5),))
    assert named_line(str(caught.value)) == line_of("y = self.up(x)")


def test_a_wrong_keyword_is_refused_with_its_name() -> None:
    with pytest.raises(WrongInputs, match="unexpected keyword argument 'mask'"):
        planner.capture(Gate().eval(), (torch.randn(2, 4),), {"mask": None})


def test_a_missing_input_is_refused_with_its_name() -> None:
    with pytest.raises(WrongInputs, match="missing 1 required positional argument: 'x'"):
        planner.capture(Gate().eval())


def test_a_module_that_cannot_be_copied_is_refused() -> None:
    model = nn.Linear(4, 4).eval()
    model.lock = threading.Lock()
    with pytest.raises(CaptureFailed, match=r"Linear cannot be copied .*lock.*__deepcopy__"):
        planner.capture(model, (torch.randn(2, 4),))


def test_an_input_that_cannot_be_copied_is_refused() -> None:
    class Takes(nn.Module):
        def forward(self, x: Tensor, lock: object) -> Tensor:  # noqa: ARG002
            return x + 1

    with pytest.raises(WrongInputs, match="An input of the model cannot be copied"):
        planner.capture(Takes().eval(), (torch.randn(2), threading.Lock()))


def test_a_lazy_module_is_refused_with_the_way_to_initialise_it() -> None:
    with pytest.raises(CaptureFailed, match=r"uninitialized parameter.*dummy batch"):
        planner.capture(nn.LazyLinear(3).eval(), (torch.randn(2, 2),))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_weights_on_meta_are_refused_by_name(device: str) -> None:
    model = nn.Linear(4, 4, device="meta").eval()
    with pytest.raises(NoValues, match=r"'weight' lies on the meta device.*to_empty"):
        planner.capture(model, (torch.randn(2, 4, device=device),))


def test_inputs_on_meta_are_refused_by_number() -> None:
    with pytest.raises(NoValues, match="'input 0' lies on the meta device"):
        planner.capture(nn.ReLU().eval(), (torch.randn(2, device="meta"),))


def test_a_cache_that_cannot_be_taken_apart_is_refused_with_the_way_to_do_without() -> None:
    config = MambaConfig(num_hidden_layers=1, hidden_size=16, state_size=4, vocab_size=32)
    model = MambaModel(config).eval()
    ids = torch.randint(32, (1, 5))
    model.register_forward_hook(_keep_an_object)
    message = r"the DynamicCache among .* inputs or outputs: .*use_cache = False"
    with pytest.raises(CaptureFailed, match=message) as caught:
        planner.capture(model, (ids,))
    assert "\n" not in str(caught.value)
    cache = model(ids).cache_params  # registered by now: every look at an input meets it
    with pytest.raises(CaptureFailed, match=message):
        planner.audit(model, (ids,), {"cache_params": cache}, measure=False)
    model.config.use_cache = False
    assert planner.capture(model, (ids,)).graph


def _keep_an_object(_: nn.Module, __: object, result: Any) -> None:
    """Something in the cache that is neither a tensor nor plain data."""
    if result.cache_params is not None:
        result.cache_params.layers[0].lock = threading.Lock()


def test_every_refusal_is_a_wrong_input_to_the_command_line() -> None:
    classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, FuseplanError)
    ]
    assert {cls.exit_status for cls in classes} == {EXIT_WRONG_INPUT}


class Keeps(nn.Module):
    """Hands something back through a container that the caller passed."""

    def __init__(self, keep: Any) -> None:
        super().__init__()
        self.keep = keep

    def forward(self, x: Tensor, kept: Any) -> Tensor:
        self.keep(kept, x)
        return x * 2


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        (lambda kept, x: kept.append(x + 1), []),
        (lambda kept, x: kept.__setitem__(0, x + 1), [torch.zeros(2)]),
        (lambda kept, x: kept.update(last=x + 1), {"last": torch.zeros(2)}),
    ],
)
def test_a_forward_that_changes_a_container_of_the_caller_is_refused(keep: Any, kept: Any) -> None:
    with pytest.raises(CaptureFailed, match="changes a list, a dict or an object"):
        planner.capture(Keeps(keep).eval(), (torch.randn(2), kept))


def test_a_forward_that_writes_into_a_tensor_of_a_container_is_captured() -> None:
    model = Keeps(lambda kept, x: kept[0].add_(x)).eval()
    planner.capture(model, (torch.randn(2), [torch.zeros(2)]))
