"""What can go wrong with an artifact, each with the advice in its message."""

from __future__ import annotations

from planner.errors import EnvironmentLacks, FuseplanError


class NotSaved(FuseplanError):
    """The module or the path cannot become an artifact."""


class NotAnArtifact(FuseplanError):
    """The file is missing, cannot be read, or is not one that `save` wrote."""


class BrokenArtifact(FuseplanError):
    """A part of the artifact is missing, changed or cut off. Nothing of it has been used."""


class OtherVersion(FuseplanError):
    """The artifact was written by a fuseplan or a torch that this one does not understand."""


class ClassMissing(EnvironmentLacks):
    """A class of the captured inputs or outputs cannot be imported here."""


class DeviceMissing(EnvironmentLacks):
    """The artifact was captured on a kind of device that this machine does not have."""


class OutsideRange(FuseplanError):
    """A call that the packaged program was not exported for."""


class InferenceOnly(FuseplanError):
    """An artifact holds no program for training."""
