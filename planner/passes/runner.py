"""Runs passes over a program: times and counts them, cleans up after each, dumps readable
Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from torch import fx
from torch.export import ExportedProgram

from planner.graph.autocast import without_autocast
from planner.report.model import PassRecord
from planner.timing import now_s

Pass = Callable[[ExportedProgram], tuple[str, ...]]
"""Changes the program in place and says in words what it did."""


def run_passes(
    program: ExportedProgram,
    passes: Sequence[tuple[str, Pass]],
    dump_to: Path | None = None,
    first_number: int = 0,
) -> tuple[PassRecord, ...]:
    """Apply `passes` in order; write `NN_name.py` for each into `dump_to` when given."""
    records: list[PassRecord] = []
    for offset, (name, change) in enumerate(passes):
        before, begin = count_operators(program), now_s()
        with without_autocast():  # a pass may compute constants
            notes = change(program)
        program.graph.eliminate_dead_code()
        program.graph.lint()
        program.graph_module.recompile()
        _name_outputs(program)
        spent_us = (now_s() - begin) * 1e6
        records.append(PassRecord(name, before, count_operators(program), spent_us, notes))
        if dump_to is not None:
            _dump(program, records[-1], first_number + offset, dump_to)
    return tuple(records)


def count_operators(program: ExportedProgram) -> int:
    """Operator calls in the program's graph."""
    return sum(node.op == "call_function" for node in program.graph.nodes)


def _name_outputs(program: ExportedProgram) -> None:
    """Let the signature name the nodes that the outputs are now, as torch's verifier asks for."""
    returned = next(iter(reversed(program.graph.nodes))).args[0]
    for spec, node in zip(program.graph_signature.output_specs, returned, strict=True):
        if isinstance(node, fx.Node):
            spec.arg = replace(spec.arg, name=node.name)


def _dump(program: ExportedProgram, record: PassRecord, number: int, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    head = (
        f"# {number:02d} {record.name}: {record.nodes_before} -> {record.nodes_after} nodes, "
        f"{record.duration_us / 1e3:.1f} ms\n"
    )
    notes = "".join(f"# {note}\n" for note in record.notes)
    body = program.graph_module.print_readable(print_output=False, include_stride=True)
    (folder / f"{number:02d}_{record.name}.py").write_text(head + notes + body, encoding="utf-8")
