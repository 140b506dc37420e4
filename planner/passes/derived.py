"""Constants of a program that are computed from weights: folded and packed ones.

The program carries their values, so that it is whole by itself. It also remembers how each was
made, so that who binds it to a module can make them anew when a weight changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from planner.passes.constants import add_constant

_KEY = "derived"


@dataclass(frozen=True, slots=True)
class Derived:
    """`compute(*weights)` of the weights with the names `sources`; its result is fresh."""

    sources: tuple[str, ...]
    compute: Callable[..., Tensor]


def add_derived(program: ExportedProgram, name: str, derived: Derived) -> fx.Node:
    """A new constant placeholder with the value of `derived` for the weights as they are now."""
    state = program.state_dict
    values = (state[name] if name in state else program.constants[name] for name in derived.sources)
    with torch.no_grad():
        node = add_constant(program, name, derived.compute(*values))
    meta = program.graph_module.meta
    meta[_KEY] = {**derived_of(program), node.name: derived}
    return node


def derived_of(program: ExportedProgram) -> Mapping[str, Derived]:
    """The program's derived constants by the name of their placeholder, which is also the key in
    `program.constants`. Those that nothing reads any more are among them.
    """
    found: Mapping[str, Derived] = program.graph_module.meta.get(_KEY, {})
    return found


def fixed_weights(program: ExportedProgram) -> Mapping[str, str]:
    """Parameters and buffers that the forward does not write, by the name of their placeholder."""
    signature = program.graph_signature
    written = set(signature.buffers_to_mutate.values())
    return {
        spec.arg.name: str(spec.target)
        for spec in signature.input_specs
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER) and spec.target not in written
    }
