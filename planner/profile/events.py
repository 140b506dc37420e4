"""Profiler events as plain data: operators, module and iteration ranges, launches, device work.

The raw kineto events are read, not torch's summaries: those lose the thread, the order and the
module that called.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

EventKind = Literal["operator", "range", "launch", "device"]

RANGE_PREFIX = "fuseplan:"
MODULE_PREFIX = RANGE_PREFIX + "module:"
ITERATION = RANGE_PREFIX + "iteration"

_DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "long int": "int64",
    "long": "int64",
    "int": "int32",
    "short int": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
}
_NOT_TENSORS = frozenset({"Scalar", "ScalarList", "GenericList"})
_LAUNCH = re.compile(r"(cuda|cu|hip|hipModule|mu|musa|ze|ur)[A-Z]")


@dataclass(frozen=True, slots=True)
class Event:
    """One profiler event.

    `start_ns` and `end_ns` are on one clock. `correlation` pairs a launch with its device work;
    for an operator it is the number that device work names as `linked`. `shapes` and `dtypes`
    are those of the tensor arguments with at least one dimension; a dtype that has no torch name
    is "". `complete` is False where the profiler left some shapes out (a list of tensors).
    `composite`: the operator is nothing but the operators it calls (it has no kernel of its own).
    """

    kind: EventKind
    name: str
    start_ns: int
    end_ns: int
    thread: int = 0
    correlation: int = 0
    linked: int = 0
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    complete: bool = True
    composite: bool = True

    @property
    def duration_us(self) -> float:
        return (self.end_ns - self.start_ns) / 1e3

    @property
    def module_path(self) -> str | None:
        """The module whose call this range is, or None."""
        if self.kind == "range" and self.name.startswith(MODULE_PREFIX):
            return self.name[len(MODULE_PREFIX) :]
        return None


def read_events(kineto_events: Iterable[Any]) -> tuple[Event, ...]:
    """The events of a `torch.profiler` run (`profile.profiler.kineto_results.events()`), by start
    time.
    """
    raw = list(kineto_events)
    annotations = {event.name() for event in raw if _is_annotation(event)}
    events = (_event(event, annotations) for event in raw)
    kept = [event for event in events if event is not None]
    return tuple(sorted(kept, key=lambda event: (event.start_ns, -event.end_ns)))


@cache
def is_composite(name: str) -> bool:
    """Whether an operator ("aten::reshape") is defined by the operators it calls, for every
    device. A name that is no operator has no kernel either.
    """
    import torch

    if "::" not in name:
        return True
    namespace, base = name.split("::", 1)
    packet = getattr(getattr(torch.ops, namespace), base, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return True
    overloads = (name if ov == "default" else f"{name}.{ov}" for ov in packet.overloads())
    # Some overloads are TorchScript's alone and unknown to the dispatcher.
    return any(
        torch._C._dispatch_has_kernel_for_dispatch_key(overload, "CompositeImplicitAutograd")
        for overload in overloads
        if torch._C._dispatch_has_kernel(overload)
    )


def _is_annotation(event: Any) -> bool:
    return bool(event.is_user_annotation()) or event.name().startswith(RANGE_PREFIX)


def _event(event: Any, annotations: set[str]) -> Event | None:
    name = event.name()
    start = event.start_ns()
    end = start + event.duration_ns()
    if not str(event.device_type()).endswith("CPU"):
        # A range of the host is mirrored onto the device's time line; it is not device work.
        if name in annotations:
            return None
        return Event(
            "device",
            name,
            start,
            end,
            correlation=event.correlation_id(),
            linked=event.linked_correlation_id(),
        )
    kind = _host_kind(event, name)
    if kind is None:
        return None
    shapes, dtypes, complete = _tensors(event) if kind == "operator" else ((), (), True)
    return Event(
        kind,
        name,
        start,
        end,
        event.start_thread_id(),
        event.correlation_id(),
        event.linked_correlation_id(),
        shapes,
        dtypes,
        complete,
        is_composite(name),
    )


def _host_kind(event: Any, name: str) -> EventKind | None:
    """The kind of a host event; None for what is neither work nor context (memory, Python)."""
    if _is_annotation(event):
        return "range"
    if hasattr(event, "activity_type"):
        activity = str(event.activity_type())
        if activity == "cpu_op":
            return "operator"
        return "launch" if activity.endswith(("_runtime", "_driver")) else None
    if _LAUNCH.match(name):
        return "launch"
    return None if name.startswith("[") else "operator"


def _tensors(event: Any) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...], bool]:
    """Shapes and dtypes of the tensor arguments. Tensors without dimensions are left out: the
    profiler also shows a Python number as one.
    """
    structured = hasattr(event, "structured_input_shapes")
    declared = event.structured_input_shapes() if structured else event.shapes()
    shapes: list[tuple[int, ...]] = []
    dtypes: list[str] = []
    complete = True
    for shape, dtype in zip(declared, event.dtypes(), strict=False):
        if dtype in _NOT_TENSORS:
            continue
        if dtype == "TensorList" and structured:
            listed = [tuple(item) for item in shape if item]
            shapes += listed
            dtypes += [""] * len(listed)
        elif dtype in ("TensorList", ""):
            # "" is an absent tensor or a list of optional tensors, whose shapes are not recorded.
            complete = False
        elif shape:
            shapes.append(tuple(shape))
            dtypes.append(_DTYPES.get(dtype, ""))
    return tuple(shapes), tuple(dtypes), complete
