"""The table of FLOP formulas: a decorator that files a formula under operator packets and refuses
duplicates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from planner.graph.op_graph import OpNode, TensorMeta

FlopFormula = Callable[[OpNode], int | None]


class DuplicateFormula(ValueError):
    """Two formulas claim one operator: a mistake in this package, not the user's."""


class FormulaTable:
    """FLOP formulas by operator packet ("aten.mm")."""

    def __init__(self) -> None:
        self._formulas: dict[str, FlopFormula] = {}

    def covers(self, packets: Iterable[str]) -> Callable[[FlopFormula], FlopFormula]:
        """Decorator: file the formula under every packet. Raises `DuplicateFormula` when one is
        taken.
        """

        def file(formula: FlopFormula) -> FlopFormula:
            for name in packets:
                if name in self._formulas:
                    raise DuplicateFormula(f"{name} has a FLOP formula already")
                self._formulas[name] = formula
            return formula

        return file

    def add(self, packets: Iterable[str], formula: FlopFormula) -> None:
        """File a formula that has no name of its own."""
        self.covers(packets)(formula)

    def find(self, name: str) -> FlopFormula | None:
        return self._formulas.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._formulas


def tensor_arg(node: OpNode, position: int, name: str) -> TensorMeta | None:
    """The tensor at an argument position, or None when absent or not a tensor."""
    value = node.arg(position, name)
    return value if isinstance(value, TensorMeta) else None


def out_numel(node: OpNode) -> int | None:
    """Elements of the first output, or None when the operator returns no tensor."""
    return node.outputs[0].numel if node.outputs else None


def per_output(count: int) -> FlopFormula:
    """A formula: `count` FLOPs for each element of the first output."""

    def formula(node: OpNode) -> int | None:
        numel = out_numel(node)
        return None if numel is None else count * numel

    return formula


def per_input(count: int) -> FlopFormula:
    """A formula: `count` FLOPs for each element of the first tensor input."""

    def formula(node: OpNode) -> int | None:
        return count * node.inputs[0].numel if node.inputs else None

    return formula
