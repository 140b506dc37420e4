"""Devices: their peaks with provenance, read strictly from coverage/devices, or measured (CPU)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Literal, get_args

from planner.errors import FuseplanError
from planner.facts import BadFacts, facts_folder, read_yaml

SourceKind = Literal["datasheet", "documentation", "source_code", "measured", "assumed"]
MatrixUse = Literal["matmul", "convolution"]

PEAK_DTYPES = (
    "float64",
    "float32",
    "tf32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "int8",
)


class UnknownDevice(FuseplanError):
    """No device file has the name asked for."""


@dataclass(frozen=True, slots=True)
class Source:
    """Provenance: how a figure is known, where from, and the day it was checked
    (YYYY-MM-DD).
    """

    kind: SourceKind
    ref: str
    checked: str


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement about a figure."""

    value: float
    source: Source


@dataclass(frozen=True, slots=True)
class Device:
    """What the roofline needs of a device.

    `claims` holds every statement by figure name ("bandwidth_gbs", "launch_overhead_us",
    "peak_tflops.float32"), the one in use first. A figure without a claim is not known; `reason`
    says why. `tf32` names the uses in which torch computes float32 on tensor cores.
    """

    name: str
    title: str
    matches: tuple[str, ...]
    claims: Mapping[str, tuple[Claim, ...]]
    tf32: frozenset[MatrixUse] = frozenset()
    reason: str = ""

    @property
    def bandwidth_gbs(self) -> float | None:
        """Memory traffic, GB/s, read plus write."""
        return self._figure("bandwidth_gbs")

    @property
    def launch_overhead_us(self) -> float | None:
        """Time of one operator call that does no work."""
        return self._figure("launch_overhead_us")

    @property
    def peak_tflops(self) -> dict[str, float]:
        """Dense peak by dtype, TFLOP/s; only what is known. "tf32" is float32 on tensor cores."""
        prefix = "peak_tflops."
        return {
            name.removeprefix(prefix): claims[0].value
            for name, claims in self.claims.items()
            if name.startswith(prefix) and claims
        }

    @property
    def sources(self) -> dict[str, Source]:
        """Provenance of each figure in use."""
        return {name: claims[0].source for name, claims in self.claims.items() if claims}

    def _figure(self, name: str) -> float | None:
        claims = self.claims.get(name, ())
        return claims[0].value if claims else None


def device_names() -> tuple[str, ...]:
    """Names of the device files, sorted."""
    return tuple(sorted(path.stem for path in (facts_folder() / "devices").glob("*.yaml")))


def load_device(name: str) -> Device:
    """The device of coverage/devices/NAME.yaml.

    Raises `UnknownDevice` when there is none, `BadFacts` when the file has a field missing,
    unknown or of the wrong type.
    """
    path = facts_folder() / "devices" / f"{name}.yaml"
    if not path.is_file():
        raise UnknownDevice(
            f"There is no device '{name}'. Known devices: {', '.join(device_names()) or 'none'}."
        )
    return _device(read_yaml(path), str(path), name)


def device_for(device: str) -> Device:
    """The device that torch calls `device` ("cpu", "cuda", "cuda:1").

    The CPU is measured (about half a second). A GPU is looked up by its name; one without a file
    has no figures and a reason, so that nothing is predicted for it.
    """
    if device.split(":")[0] == "cpu":
        from planner.cost.measure_cpu import measure_cpu

        return measure_cpu()
    if device.split(":")[0] != "cuda":
        return _without_figures(device, f"figures of '{device}' devices are not known")
    import torch

    found = match_device(torch.cuda.get_device_name(device))
    return replace(found, tf32=_tf32_uses())


def match_device(reported_name: str) -> Device:
    """The device file that lists a runtime's device name, else a device without figures."""
    for name in device_names():
        candidate = load_device(name)
        if reported_name in candidate.matches:
            return candidate
    return _without_figures(reported_name, f"no device file lists '{reported_name}'")


def _without_figures(title: str, reason: str) -> Device:
    return Device("unknown", title, (title,), {}, reason=reason)


def _tf32_uses() -> frozenset[MatrixUse]:
    """Where torch's present settings allow TF32. The older getters (`allow_tf32`) raise once a
    program has used the newer ones read here.
    """
    import torch

    backends: Any = torch.backends
    settings: dict[MatrixUse, str] = {
        "matmul": backends.cuda.matmul.fp32_precision,
        "convolution": backends.cudnn.conv.fp32_precision,
    }
    return frozenset(use for use, precision in settings.items() if precision == "tf32")


def _device(content: Any, path: str, name: str) -> Device:
    fields = _fields(
        content,
        path,
        ("name", "title", "matches", "bandwidth_gbs", "launch_overhead_us", "peak_tflops"),
    )
    if fields["name"] != name:
        raise BadFacts(f"{path}: 'name' is '{fields['name']}', but the file is '{name}.yaml'.")
    matches = fields["matches"]
    if not isinstance(matches, list) or not matches:
        raise BadFacts(f"{path}: 'matches' must list at least one device name.")
    claims = {
        figure: _claims(fields[figure], f"{path}: {figure}")
        for figure in ("bandwidth_gbs", "launch_overhead_us")
    }
    peaks = fields["peak_tflops"]
    if not isinstance(peaks, dict):
        raise BadFacts(f"{path}: 'peak_tflops' must map dtypes to lists of claims.")
    for dtype, entries in peaks.items():
        if dtype not in PEAK_DTYPES:
            raise BadFacts(
                f"{path}: unknown dtype '{dtype}' under peak_tflops; use one of "
                f"{', '.join(PEAK_DTYPES)}."
            )
        claims[f"peak_tflops.{dtype}"] = _claims(entries, f"{path}: peak_tflops.{dtype}")
    return Device(name, str(fields["title"]), tuple(map(str, matches)), claims)


def _claims(entries: Any, where: str) -> tuple[Claim, ...]:
    if not isinstance(entries, list):
        raise BadFacts(f"{where}: must be a list of claims (empty when not known).")
    return tuple(_claim(entry, where) for entry in entries)


def _claim(entry: Any, where: str) -> Claim:
    fields = _fields(entry, where, ("value", "source"))
    value = fields["value"]
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise BadFacts(f"{where}: 'value' must be a number above zero, not {value!r}.")
    source = _fields(fields["source"], f"{where}: source", ("kind", "ref", "checked"))
    if source["kind"] not in get_args(SourceKind):
        raise BadFacts(
            f"{where}: source kind '{source['kind']}' is not one of "
            f"{', '.join(get_args(SourceKind))}."
        )
    checked = source["checked"]
    if not isinstance(checked, date):
        raise BadFacts(f"{where}: 'checked' must be a day such as 2026-11-30, not {checked!r}.")
    return Claim(float(value), Source(source["kind"], str(source["ref"]), checked.isoformat()))


def _fields(content: Any, where: str, names: tuple[str, ...]) -> dict[str, Any]:
    """The mapping, checked to hold exactly these keys."""
    if not isinstance(content, dict):
        raise BadFacts(f"{where}: must be a mapping with {', '.join(names)}.")
    if missing := [name for name in names if name not in content]:
        raise BadFacts(f"{where}: missing {', '.join(missing)}.")
    if unknown := [str(name) for name in content if name not in names]:
        raise BadFacts(f"{where}: unknown field {', '.join(unknown)}; allowed: {', '.join(names)}.")
    return content
