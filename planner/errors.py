"""One class per user mistake: the message says what is wrong and what to do; the class fixes the
exit status.

Every error a user can cause derives from `FuseplanError`. The command line prints `str(error)`
and exits with `error.exit_status`; the library lets the exception travel.
"""

from __future__ import annotations

EXIT_DONE = 0
EXIT_GATE_FELL_SHORT = 1
EXIT_WRONG_INPUT = 2
EXIT_ENVIRONMENT = 3


class FuseplanError(Exception):
    """A mistake or lack the user can mend. The message holds the advice."""

    exit_status = EXIT_WRONG_INPUT


class EnvironmentLacks(FuseplanError):
    """The machine or the installation lacks something: a device, a package, a compiler."""

    exit_status = EXIT_ENVIRONMENT


class MissingPackage(EnvironmentLacks):
    """An optional package is needed for what was asked."""

    def __init__(self, package: str, extra: str, needed_for: str) -> None:
        super().__init__(
            f"{needed_for} needs the package '{package}', which is not installed. "
            f"Install it with: pip install 'fuseplan[{extra}]'"
        )
