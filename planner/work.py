"""What every verb starts from: the model with its inputs, captured, measured, on a device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from torch.export import ExportedProgram

from planner.cost.devices import Device
from planner.graph.export import Captured
from planner.graph.op_graph import OpGraph
from planner.profile.model import Profile
from planner.report.model import PassRecord


@dataclass(frozen=True, slots=True)
class CapturedModel:
    """A captured and normalized model: `program` to transform, `graph` to read. `removed` holds
    the operators that normalizing took out.
    """

    program: ExportedProgram
    graph: OpGraph
    passes: tuple[PassRecord, ...]
    source: Captured
    removed: OpGraph


@dataclass(frozen=True, slots=True)
class Work:
    """A model as its run sees it. `graph` holds the operators that do work, `profile` is None
    where nothing was measured.
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    name: str
    torch_device: str
    device: Device
    captured: CapturedModel
    passes: tuple[PassRecord, ...]
    graph: OpGraph
    profile: Profile | None
    out: Path | None
