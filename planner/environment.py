"""Where figures come from: versions, device and settings, without host names or paths."""

from __future__ import annotations

import importlib.metadata
import platform

import torch

from planner.report.model import Environment


def environment(device: str) -> Environment:
    """The environment of a run on `device`, as the report holds it."""
    return Environment(
        fuseplan=fuseplan_version(),
        python=platform.python_version(),
        torch=torch.__version__,
        triton=_version("triton"),
        device=device,
        device_name=_device_name(device),
        threads=torch.get_num_threads(),
        platform=f"{platform.system()} {platform.machine()}",
        settings={
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "cudnn_allow_tf32": str(torch.backends.cudnn.allow_tf32),
        },
    )


def fuseplan_version() -> str:
    """The installed version, "source tree" where none is."""
    return _version("fuseplan") or "source tree"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _device_name(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(torch.device(device))
    return _cpu_model() or platform.processor() or "CPU"


def _cpu_model() -> str | None:
    """The processor's own name; Linux tells it in /proc/cpuinfo."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(
                (x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), None
            )
    except OSError:
        return None
