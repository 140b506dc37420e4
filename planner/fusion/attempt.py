"""What is equal so far between a pattern and a place of a graph, and how near the best failure
came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import fx

from fusion_kernels.rule import Variant
from planner.fusion.patterns import Spelling


@dataclass(frozen=True, slots=True)
class Unified:
    """What is equal so far: parameters to what stands for them, the pattern's operators to the
    graph's, and the casts and inner products that were passed on the way.

    `fitting` counts the arguments that fit.
    """

    bindings: Mapping[str, Any] = field(default_factory=dict)
    operators: Mapping[fx.Node, fx.Node] = field(default_factory=dict)
    passed: tuple[fx.Node, ...] = ()
    fitting: int = 0

    @property
    def nodes(self) -> tuple[fx.Node, ...]:
        """All matched nodes in graph order."""
        return tuple(sorted({*self.operators.values(), *self.passed}))

    def entered(self, pattern: fx.Node, node: fx.Node, passed: Sequence[fx.Node]) -> Unified:
        operators = {**self.operators, pattern: node}
        return replace(self, operators=operators, passed=(*self.passed, *passed))

    def bound(self, name: str, value: Any) -> Unified:
        return replace(self, bindings={**self.bindings, name: value})


@dataclass(slots=True)
class Attempt:
    """One try of one spelling at one place, with the failure that came furthest.

    `depth` and `fitted` count the operators and arguments that fit where the reason was found,
    `reached` holds those operators in the graph.
    """

    variant: Variant
    spelling: Spelling
    depth: int = -1
    fitted: int = 0
    by_number: bool = False
    reason: str = ""
    node: str = ""
    reached: frozenset[fx.Node] = frozenset()

    def fail(self, state: Unified, reason: str, node: Any, *, by_number: bool = False) -> None:
        """A wrong number is nearer to a match than anything else that does not fit."""
        found = (len(state.operators), by_number, state.fitting)
        if found > (self.depth, self.by_number, self.fitted):
            self.depth, self.by_number, self.fitted = found
            self.reason, self.reached = reason, frozenset(state.nodes)
            self.node = node.name if isinstance(node, fx.Node) else ""

    def refuse(self, state: Unified, reason: str, node: fx.Node) -> None:
        """All of the pattern fits, and the rule says no. The first refusal stands."""
        found = (self.spelling.size, True, state.fitting)
        if found > (self.depth, self.by_number, self.fitted):
            self.depth, self.by_number, self.fitted = found
            self.reason, self.reached, self.node = reason, frozenset(), node.name

    @property
    def lacking(self) -> tuple[int, bool, int]:
        """Small for the try that was nearest to a match: the operators it missed come first."""
        return self.spelling.size - self.depth, not self.by_number, -self.fitted
