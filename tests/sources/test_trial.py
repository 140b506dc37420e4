"""Devices that are not there, and models that do not run on their inputs."""

from __future__ import annotations

import pytest
import torch

from planner.errors import EXIT_ENVIRONMENT
from planner.sources.devices import DeviceMissing, resolve_device
from planner.sources.load import load_subject
from planner.sources.options import BadOption, SourceOptions, parse_input
from planner.sources.trial import DoesNotRun, OutOfMemory, run_once


@pytest.mark.usefixtures("project")
def test_inputs_of_the_wrong_shape_name_the_line_and_the_inputs() -> None:
    options = SourceOptions(inputs=(parse_input("x=float32[2,3]"),))
    subject = load_subject("model.py:make", options)
    with pytest.raises(DoesNotRun, match=r"x=float32\[2,3\]: model\.py:12: RuntimeError"):
        run_once(subject)


@pytest.mark.usefixtures("project")
def test_running_out_of_memory_is_the_environments_lack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = load_subject("model.py:make", SourceOptions())

    def exhausted(**_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(subject.module, "forward", exhausted)
    with pytest.raises(OutOfMemory, match="--batch") as caught:
        run_once(subject)
    assert caught.value.exit_status == EXIT_ENVIRONMENT


@pytest.mark.parametrize("text", ["tpu", "cuda:", "cuda:-1", "CPU", "cuda:x", ""])
def test_an_unknown_device_is_refused(text: str) -> None:
    with pytest.raises(BadOption, match="use cpu, cuda or cuda:N"):
        resolve_device(text)


def test_a_missing_device_is_the_environments_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceMissing, match="--device cuda") as caught:
        resolve_device("cuda")
    assert caught.value.exit_status == EXIT_ENVIRONMENT


def test_a_device_number_past_the_last_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(DeviceMissing, match="cuda:0 to cuda:1"):
        resolve_device("cuda:2")
