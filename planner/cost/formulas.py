"""FLOPs and bytes of an operator node: `cost_of`."""

from __future__ import annotations

from dataclasses import dataclass

from planner.cost import elementwise, matrix
from planner.cost.families import packet
from planner.cost.registry import FormulaTable
from planner.cost.traffic import bytes_of
from planner.graph.op_graph import OpNode


@dataclass(frozen=True, slots=True)
class OpCost:
    """Arithmetic and traffic of one or several operator calls. None is unknown, never zero, and
    contagious: unknown + 5 is unknown.
    """

    flops: int | None
    bytes: int | None

    def __add__(self, other: OpCost) -> OpCost:
        return OpCost(_sum(self.flops, other.flops), _sum(self.bytes, other.bytes))


NO_COST = OpCost(0, 0)


def cost_of(node: OpNode) -> OpCost:
    """FLOPs and bytes of one call.

    A multiplication and an addition count one each (see `planner.cost.matrix` and
    `planner.cost.elementwise` for the conventions). An operator without a formula has `flops`
    None.
    """
    formula = FORMULAS.find(packet(node.op))
    return OpCost(None if formula is None else formula(node), bytes_of(node))


def _sum(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else left + right


def _build() -> FormulaTable:
    table = FormulaTable()
    matrix.register(table)
    elementwise.register(table)
    return table


FORMULAS = _build()
