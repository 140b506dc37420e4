"""Runs a subject once, so that inputs that do not fit end in one message before any work is
done.
"""

from __future__ import annotations

import torch

from planner.errors import EnvironmentLacks, FuseplanError
from planner.sources.made_inputs import describe
from planner.sources.subject import Batch, Subject
from planner.sources.user_error import told


class DoesNotRun(FuseplanError):
    """The model's forward fails on the inputs."""


class OutOfMemory(EnvironmentLacks):
    """The device has too little memory for one forward."""


def run_once(subject: Subject) -> None:
    """One forward under inference mode; its result is dropped.

    Raises `DoesNotRun` with the line of the model that failed and the inputs it was given, or
    `OutOfMemory`.
    """
    given = describe(Batch(subject.args, subject.kwargs))
    try:
        with torch.inference_mode():
            subject.module(*subject.args, **subject.kwargs)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(
            f"{subject.name} with {given}: out of memory. Make --batch or --seq smaller, or use "
            "--dtype bfloat16."
        ) from error
    except Exception as error:
        why = " ".join(filter(None, (told(error), subject.advice)))
        raise DoesNotRun(f"{subject.name} does not run on {given}: {why}") from error
