"""The first lines of a report: what was looked at, on what, and how it was captured."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from planner.counted import counted
from planner.report import figures
from planner.report.model import ModelInfo, PassRecord, Report
from planner.report.terminal.layout import Column, Page, labelled, line, table, title

_CAPTURED = "captured"
"""The record of the capture itself, which the section's title tells of."""


def header(report: Report, _page: Page) -> Iterator[RenderableType]:
    """Model, device and versions."""
    env, model = report.environment, report.model
    yield line((model.name, "bold"), f"  {model.cls}, {_size(model)}")
    device = env.device if env.device_name == env.device else f"{env.device}, {env.device_name}"
    threads = f", {counted(env.threads, 'thread')}" if env.device.startswith("cpu") else ""
    triton = f"triton {env.triton}" if env.triton else "no triton"
    versions = (f"fuseplan {env.fuseplan}", f"torch {env.torch}", triton, f"python {env.python}")
    rows = [
        ("inputs", ", ".join(f"{k}={v}" for k, v in model.inputs.items()) or "none"),
        ("device", f"{device}{threads}"),
        ("versions", ", ".join((*versions, env.platform))),
    ]
    if env.settings:
        rows.append(("settings", ", ".join(f"{k}={v}" for k, v in env.settings.items())))
    yield labelled(rows)


def capture(report: Report, _page: Page) -> Iterator[RenderableType]:
    """How the program was captured, where it broke, and what each pass did."""
    info = report.capture
    graphs, operators = counted(info.graphs, "graph"), counted(info.nodes, "operator")
    yield from title("Capture", f"by {info.method}, {graphs}, {operators}")
    for stop in info.breaks:
        where = f" at {stop.source}" if stop.source else ""
        yield line(("break", "yellow"), f"{where}: {stop.reason}")
    if not info.passes:
        return
    columns = [
        Column("pass"),
        Column("operators", "right"),
        Column("time", "right"),
        Column("what it did", grow=1, wrap=True),
    ]
    busy = [record for record in info.passes if _did_something(record)]
    rows = [
        (
            record.name,
            str(record.nodes_before)
            if record.nodes_before == record.nodes_after
            else f"{record.nodes_before} → {record.nodes_after}",
            figures.time(record.duration_us),
            "; ".join(record.notes),
        )
        for record in busy
    ]
    if rows:
        yield table(columns, rows)
    shown = {_CAPTURED, *(record.name for record in busy)}
    idle = dict.fromkeys(record.name for record in info.passes if record.name not in shown)
    if idle:
        yield line((f"nothing to do for {', '.join(idle)}", "dim"))


def _did_something(record: PassRecord) -> bool:
    return bool(record.notes) or record.nodes_before != record.nodes_after


def _size(model: ModelInfo) -> str:
    if not model.parameters:
        return "no parameters"
    noun = "parameter" if model.parameters == 1 else "parameters"
    size = figures.count(model.parameter_bytes, "B")
    return f"{figures.count(model.parameters)} {noun}, {size} {model.dtype}"
