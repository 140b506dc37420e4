"""What can keep a model from being captured, each with the advice in its message."""

from __future__ import annotations

from planner.errors import FuseplanError


class TrainingMode(FuseplanError):
    """The model is in training mode; fuseplan plans inference."""


class WrongInputs(FuseplanError):
    """The model's own forward refuses the inputs."""


class NoValues(FuseplanError):
    """Parameters, buffers or inputs without data: there is nothing to compare with."""


class CaptureFailed(FuseplanError):
    """torch.export cannot take the whole program."""


class CaptureDiffers(FuseplanError):
    """The captured program does not compute what the eager model computes."""
