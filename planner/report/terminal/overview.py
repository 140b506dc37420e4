"""The first lines of a report: what was looked at, on what, and how it was captured."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from planner.report import figures
from planner.report.model import Report
from planner.report.terminal.layout import Column, labelled, line, table, title


def header(report: Report, _width: int) -> Iterator[RenderableType]:
    """Model, device and versions."""
    env, model = report.environment, report.model
    size = (
        f"{figures.count(model.parameters)} parameters, "
        f"{figures.count(model.parameter_bytes, 'B')} {model.dtype}"
    )
    yield line((model.name, "bold"), f"  {model.cls}, {size}")
    device = env.device if env.device_name == env.device else f"{env.device}, {env.device_name}"
    threads = f", {env.threads} threads" if env.device.startswith("cpu") else ""
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


def capture(report: Report, _width: int) -> Iterator[RenderableType]:
    """How the program was captured, where it broke, and what each pass did."""
    info = report.capture
    graphs = "1 graph" if info.graphs == 1 else f"{info.graphs} graphs"
    yield from title("Capture", f"by {info.method}, {graphs}, {info.nodes} operators")
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
    rows = [
        (
            record.name,
            str(record.nodes_before)
            if record.nodes_before == record.nodes_after
            else f"{record.nodes_before} → {record.nodes_after}",
            figures.time(record.duration_us),
            "; ".join(record.notes) or "nothing to do",
        )
        for record in info.passes
    ]
    yield table(columns, rows)
