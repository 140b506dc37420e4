"""How small open sizes may get: 0 and 1, for which torch.export never traces, are compared with
eager.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree
from torch.utils._sympy.value_ranges import ValueRanges

from planner.graph.compare import require_equal
from planner.graph.errors import CaptureDiffers
from planner.graph.open_example import Call, OpenExample, resized
from planner.graph.open_sizes import OpenSizes, Sizes, evaluated, open_sizes
from planner.graph.twin import clone_inputs, twin_of

_TRACED_FROM = 2
"""torch.export reasons of open sizes as if they were 2 or more."""


def settle_ends(program: ExportedProgram, twin: nn.Module, example: OpenExample) -> tuple[str, ...]:
    """Write into the program's range constraints from which size on it is eager's equal, and say
    so. A branch on a size of 1, or a squeeze, is right from 2 on only.
    """
    fixed = _fixed(program, example.least)
    found = open_sizes(program)
    if found is None:
        return fixed
    call = (example.args, example.kwargs)
    leaves = pytree.tree_leaves(call)
    own = found.sizes_of(leaves)
    assert not isinstance(own, str), own
    least = _asked_for(found, example.least)
    notes: list[str] = []
    for symbol in found.ranges:
        low, high = found.ranges[symbol]
        if low <= _TRACED_FROM and symbol in least:
            low, reason = _lowest(program, twin, call, found, own, symbol, least[symbol])
            _set_range(program, symbol, low, high)
            notes += [f"{_place(found, symbol)}: {reason}"] if reason else []
    lowest = {symbol: low for symbol, (low, _) in open_sizes(program).ranges.items()}  # type: ignore[union-attr]
    at_once = {s: low if low < _TRACED_FROM else own[s] for s, low in lowest.items()}
    reason = _difference(program, twin, resized(*call, found, at_once), found)
    if reason:
        notes.append(f"sizes below {_TRACED_FROM} are left to eager, for all at once {reason}")
        for symbol, low in lowest.items():
            _set_range(program, symbol, max(low, _TRACED_FROM), found.ranges[symbol][1])
    return (*fixed, _ranges_in_words(program), *notes)


def lifted(program: ExportedProgram, module: nn.Module) -> list[Tensor]:
    """Weights and constants in the order of the program's placeholders."""
    state = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    targets = [spec.target for spec in program.graph_signature.input_specs if spec.target]
    return [state[name] if name in state else program.constants[name] for name in targets]


def _fixed(program: ExportedProgram, least: Sequence[Mapping[int, int]]) -> tuple[str, ...]:
    """What was to stay open and does not, in words."""
    specs = program.graph_signature.input_specs
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    pairs = zip(specs, placeholders, strict=True)
    inputs = [node for spec, node in pairs if spec.kind is InputKind.USER_INPUT]
    notes = []
    for node, dims in zip(inputs, least, strict=True):
        for dim in dims:
            size = evaluated(node.meta["val"].shape[dim], {})
            if size is not None:
                where = f"dimension {dim} of '{node.name}'"
                notes.append(f"{where} was to stay open, and the model fixes it at {size}")
    return tuple(notes)


def _asked_for(found: OpenSizes, least: Sequence[Mapping[int, int]]) -> dict[sympy.Symbol, int]:
    """The least size of each symbol that is a dimension of its own."""
    asked: dict[sympy.Symbol, int] = {}
    for item, dims in zip(found.inputs, least, strict=True):
        for dim, size in enumerate(item.shape if item else ()):
            if isinstance(size, sympy.Symbol) and dim in dims:
                asked[size] = max(asked.get(size, 0), dims[dim])
    return asked


def _lowest(
    program: ExportedProgram,
    twin: nn.Module,
    call: Call,
    found: OpenSizes,
    own: Sizes,
    symbol: sympy.Symbol,
    least: int,
) -> tuple[int, str]:
    """From which size on the program may run, and why not from less."""
    for size in range(_TRACED_FROM - 1, least - 1, -1):
        reason = _difference(program, twin, resized(*call, found, {**own, symbol: size}), found)
        if reason:
            return size + 1, f"{size} is left to eager, {reason}"
    return min(least, _TRACED_FROM) if least < _TRACED_FROM else least, ""


def _difference(program: ExportedProgram, twin: nn.Module, call: Call, found: OpenSizes) -> str:
    """Why the program may not take this call; "" where it gives what eager gives."""
    sizes = found.sizes_of(pytree.tree_leaves(call))
    if isinstance(sizes, str) and "condition" in sizes:
        return sizes
    try:
        args, kwargs = clone_inputs(call)
        with torch.random.fork_rng():
            expected = twin_of(twin)(*args, **kwargs)
    except Exception:
        return "which refuses it"
    try:
        with torch.random.fork_rng():
            actual = _run(program, twin_of(twin), clone_inputs(call))
        require_equal(actual, expected)
    except CaptureDiffers:
        return "for which the exported program gives another result"
    except Exception:
        return "for which the exported program does not run"
    return ""


def _run(program: ExportedProgram, module: nn.Module, call: Call) -> Any:
    leaves = pytree.tree_leaves(call)
    values = program.graph_module(*lifted(program, module), *leaves)
    kinds = [spec.kind for spec in program.graph_signature.output_specs]
    users = [v for v, kind in zip(values, kinds, strict=True) if kind is OutputKind.USER_OUTPUT]
    assert program.call_spec.out_spec is not None
    return pytree.tree_unflatten(users, program.call_spec.out_spec)


def _set_range(program: ExportedProgram, symbol: sympy.Symbol, low: int, high: int | None) -> None:
    known = program.range_constraints.get(symbol)
    upper = known.upper if known is not None else sympy.oo
    program.range_constraints[symbol] = ValueRanges(low, upper if high is None else high)


def _ranges_in_words(program: ExportedProgram) -> str:
    found = open_sizes(program)
    assert found is not None
    ends = [
        f"{_place(found, symbol)} from {low}{'' if high is None else f' to {high}'}"
        for symbol, (low, high) in found.ranges.items()
    ]
    return f"open sizes: {', '.join(ends)}"


def _place(found: OpenSizes, symbol: sympy.Symbol) -> str:
    """The first dimension that is this size."""
    for item in found.inputs:
        for dim, size in enumerate(item.shape if item else ()):
            if item is not None and size == symbol:
                return item.place(dim)
    return str(symbol)
