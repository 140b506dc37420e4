"""What a compiled kernel uses, read from its binary or its assembly: registers and what spilled."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path


class UnknownUsage(RuntimeError):
    """A tool that cannot be run, or an output that names no resource usage."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Per thread: `registers`, bytes of local memory (stack frame included), and how many
    registers the compiler says it spilled (None where it counts the bytes alone).
    """

    registers: int
    local_bytes: int
    spilled_registers: int | None


def usage_of_cubin(cubin: bytes, cuobjdump: str) -> Usage:
    """What `cuobjdump --dump-resource-usage` says of the binary's one kernel.

    `cuobjdump` is the tool's path. Raises `UnknownUsage`.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        try:
            dump = subprocess.run(
                [cuobjdump, "--dump-resource-usage", str(path)],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        except (OSError, subprocess.CalledProcessError) as error:
            raise UnknownUsage(f"triton's cuobjdump cannot be run: {error}") from error
    found = {key: int(amount) for key, amount in re.findall(r"\b([A-Z]+):(\d+)", dump)}
    if not {"REG", "STACK", "LOCAL"} <= found.keys():
        raise UnknownUsage(f"cuobjdump names no resource usage:\n{dump}")
    return Usage(found["REG"], found["STACK"] + found["LOCAL"], None)


def usage_of_amdgcn(assembly: str) -> Usage:
    """What the metadata at the end of AMD's assembly text says of its one kernel.

    Registers are vector registers of a lane, accumulation registers included; local memory is the
    private segment. Fields as in LLVM's "User Guide for AMDGPU Backend", code object metadata.
    Raises `UnknownUsage`.
    """
    names = ("vgpr_count", "private_segment_fixed_size", "vgpr_spill_count", "sgpr_spill_count")
    found = {name: re.search(rf"^ +\.{name}: +(\d+)$", assembly, re.MULTILINE) for name in names}
    missing = [name for name, match in found.items() if match is None]
    if missing:
        raise UnknownUsage(f"the assembly's metadata lacks {', '.join(missing)}")
    registers, local, *spilled = (int(match.group(1)) for match in found.values() if match)
    return Usage(registers, local, sum(spilled))
