"""The sizes that a captured program leaves open: which, how far they go, what ties them to one
another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import sympy
import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.solve import try_solve

Size: TypeAlias = "int | sympy.Expr"
Sizes: TypeAlias = Mapping[sympy.Symbol, int]


@dataclass(frozen=True, slots=True)
class OpenInput:
    """One input as captured: sizes and strides are numbers, or expressions of open sizes. A whole
    number that is open counts as its one size and has no strides.
    """

    name: str
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    contiguous: bool
    is_number: bool = False

    def place(self, dim: int) -> str:
        """The size in words."""
        return f"input '{self.name}'" if self.is_number else f"dimension {dim} of '{self.name}'"


@dataclass(frozen=True, slots=True)
class OpenSizes:
    """`inputs` has an entry for each leaf of a call, None for what is neither a tensor nor an open
    number. `ranges` are inclusive, None where there is no upper end. `conditions` is all else that
    the capture relies on.
    """

    inputs: tuple[OpenInput | None, ...]
    ranges: Mapping[sympy.Symbol, tuple[int, int | None]]
    conditions: tuple[sympy.Basic, ...]

    def sizes_of(self, leaves: Sequence[Any]) -> dict[sympy.Symbol, int] | str:
        """The open sizes of a call; a text says which dimension does not fit, and why."""
        found: dict[sympy.Symbol, int] = {}
        first: dict[sympy.Symbol, str] = {}
        derived: list[tuple[Size, int, str]] = []
        for item, leaf in zip(self.inputs, leaves, strict=True):
            for dim, (size, given) in enumerate(_pairs(item, leaf)):
                assert item is not None
                if not isinstance(size, sympy.Symbol):
                    derived.append((size, given, item.place(dim)))
                elif found.setdefault(size, given) != given:
                    return f"{item.place(dim)} is {given}, {first[size]} is {found[size]}"
                elif size not in first:
                    first[size] = item.place(dim)
                    reason = self._beyond(size, given, first[size])
                    if reason:
                        return reason
        return self._derived(derived, found) or self._broken(found) or found

    def conditions_in_words(self) -> str:
        """All conditions, of dimensions by name."""
        return ", ".join(map(self._named, self.conditions))

    def _derived(
        self, derived: Sequence[tuple[Size, int, str]], found: dict[sympy.Symbol, int]
    ) -> str:
        for size, given, place in derived:
            unknown = sorted(getattr(size, "free_symbols", set()) - found.keys(), key=str)
            if len(unknown) == 1:
                value = _solved(size, given, unknown[0], found)
                if value is None:
                    return f"{place} is {given}, captured was {size}"
                found[unknown[0]] = value
                reason = self._beyond(unknown[0], value, f"{unknown[0]}, by {place},")
                if reason:
                    return reason
            wanted = evaluated(size, found)
            if wanted != given:
                return f"{place} is {given}, captured was {wanted if wanted is not None else size}"
        return ""

    def _beyond(self, symbol: sympy.Symbol, given: int, place: str) -> str:
        low, high = self.ranges.get(symbol, (0, None))
        if low <= given and (high is None or given <= high):
            return ""
        end = f"{low} or more" if high is None else f"{low} to {high}"
        return f"{place} is {given}, the program was captured for {end}"

    def _broken(self, found: Sizes) -> str:
        for condition in self.conditions:
            if condition.xreplace(found_numbers(found)) != sympy.true:
                return f"the sizes break a condition of the capture: {self._named(condition)}"
        return ""

    def _named(self, condition: sympy.Basic) -> str:
        """The condition with symbols written as the dimensions that they are."""
        text = str(condition)
        for item in self.inputs:
            for dim, size in enumerate(item.shape if item else ()):
                if isinstance(size, sympy.Symbol) and item is not None:
                    text = text.replace(str(size), item.place(dim))
        return text


def open_sizes(program: ExportedProgram) -> OpenSizes | None:
    """What `program` leaves open, None where every size is fixed."""
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    inputs: list[OpenInput | None] = []
    env: ShapeEnv | None = None
    for spec, node in zip(program.graph_signature.input_specs, placeholders, strict=True):
        if spec.kind is InputKind.USER_INPUT:
            value = node.meta.get("val")
            inputs.append(_open_input(node.name, value))
            mode = getattr(value, "fake_mode", None)
            env = env or getattr(mode, "shape_env", None)
    symbols = _symbols(inputs)
    if not symbols:
        return None
    ranges = {symbol: _ends(program, symbol) for symbol in symbols}
    guards = [guard.expr for guard in env.guards] if env is not None else []
    own = [g for g in dict.fromkeys(guards) if g.free_symbols and g.free_symbols <= set(symbols)]
    return OpenSizes(tuple(inputs), ranges, tuple(own))


def evaluated(size: Any, sizes: Sizes) -> int | None:
    """The size as a number where `sizes` has all that it depends on, else None."""
    if isinstance(size, torch.SymInt):
        size = size.node.expr
    if isinstance(size, int):
        return size
    value = size.xreplace(found_numbers(sizes))
    return int(value) if value.is_number else None


def found_numbers(sizes: Sizes) -> dict[sympy.Symbol, sympy.Integer]:
    """The sizes as sympy's numbers, to put in the place of their symbols."""
    return {symbol: sympy.Integer(size) for symbol, size in sizes.items()}


def _symbols(inputs: Sequence[OpenInput | None]) -> dict[sympy.Symbol, None]:
    """Every open size, in the order of the inputs."""
    found: dict[sympy.Symbol, None] = {}
    for item in inputs:
        for size in item.shape if item else ():
            found |= dict.fromkeys(sorted(getattr(size, "free_symbols", ()), key=str))
    return found


def _open_input(name: str, value: Any) -> OpenInput | None:
    if isinstance(value, torch.SymInt):
        return OpenInput(name, (value.node.expr,), (), contiguous=True, is_number=True)
    if not isinstance(value, Tensor):
        return None
    shape, stride = (tuple(map(_expression, sizes)) for sizes in (value.shape, value.stride()))
    return OpenInput(name, shape, stride, contiguous=_is_contiguous(shape, stride))


def _expression(size: Any) -> Size:
    if not isinstance(size, torch.SymInt):
        return int(size)
    expression: sympy.Expr = size.node.expr
    return int(expression) if expression.is_number else expression


def _is_contiguous(shape: Sequence[Size], stride: Sequence[Size]) -> bool:
    """For all sizes: the strides are the products of what is further in."""
    step: Any = 1
    for size, own in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1 and sympy.sympify(own - step) != 0:
            return False
        step = step * size
    return True


def _pairs(item: OpenInput | None, leaf: Any) -> list[tuple[Size, int]]:
    """Captured and given sizes; none where the leaf is of another kind, which others look at."""
    if item is None:
        return []
    if item.is_number:
        return [(item.shape[0], leaf)] if type(leaf) is int else []
    if not isinstance(leaf, Tensor) or leaf.dim() != len(item.shape):
        return []
    return list(zip(item.shape, leaf.shape, strict=True))


def _solved(size: Any, given: int, symbol: sympy.Symbol, found: Sizes) -> int | None:
    equation = sympy.Eq(size.xreplace(found_numbers(found)), given)
    solution = try_solve(equation, symbol) if isinstance(equation, sympy.Eq) else None
    value = solution[1] if solution is not None else None
    return int(value) if value is not None and value.is_integer and value.is_number else None


def _ends(program: ExportedProgram, symbol: sympy.Symbol) -> tuple[int, int | None]:
    ends = program.range_constraints.get(symbol)
    if ends is None:
        return 0, None
    upper = None if ends.upper in (int_oo, sympy.oo) else int(ends.upper)
    return max(int(ends.lower), 0), upper
