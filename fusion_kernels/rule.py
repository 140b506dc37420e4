"""What a named rule is: patterns of mathematics, a check, and what matching against a graph
yields.

A pattern is a plain function of tensors. Traced it is what the matcher looks for; its parameters
become the kernel's inputs. Variants of a rule are tried in order, the largest first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from torch import fx

Stage = Literal["pattern", "users", "check", "numerics", "speed"]


@dataclass(frozen=True, slots=True)
class Variant:
    """One form of a rule. `name` becomes the kernel's name.

    `examples` gives each tensor parameter a shape to trace with and each number a value no program
    would use, so that it is recognised in the traced graph and bound to whatever stands there.
    Parameters in `optional` may be None in the graph, those in `masks` are traced as booleans and
    those in `indices` as integers.
    `spellings` are other ways to write the same, of the same parameters or fewer. Written-out
    products need none: their factors may stand in any order and grouping.
    """

    name: str
    pattern: Callable[..., Any]
    examples: Mapping[str, tuple[int, ...] | float]
    optional: frozenset[str] = frozenset()
    masks: frozenset[str] = frozenset()
    indices: frozenset[str] = frozenset()
    spellings: tuple[Callable[..., Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Match:
    """A place where a variant fits: the matched nodes in graph order, and what its parameters
    stand for.
    """

    rule: str
    variant: str
    nodes: tuple[fx.Node, ...]
    bindings: Mapping[str, Any]

    @property
    def root(self) -> fx.Node:
        """The node that computes the pattern's result."""
        return self.nodes[-1]

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of the tensor bound to `name`."""
        return tuple(self.bindings[name].meta["val"].shape)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A place where a rule nearly fits, or a candidate is dropped: the reason, and the node it is
    about.
    """

    rule: str
    stage: Stage
    reason: str
    node: str


Check = Callable[[Match], str | None]
"""None when the match may be fused, else the reason against it; an empty one where the place is
nothing that a reader would take for the rule's.
"""


@dataclass(frozen=True, slots=True)
class FusionRule:
    """A named fusion."""

    name: str
    variants: tuple[Variant, ...]
    check: Check


def broadcasts_into(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether a tensor of `shape` broadcasts to `target` without enlarging it."""
    padded = (1,) * (len(target) - len(shape)) + shape
    return len(padded) == len(target) and all(
        n in (1, wanted) for n, wanted in zip(padded, target, strict=True)
    )


def not_over_the_last(match: Match, reduction: Any) -> str | None:
    """Why the match's reduction, an overload with `dim` and `keepdim` after its operand, is not
    over the last dimension alone, kept.
    """
    (node,) = (n for n in match.nodes if n.target == reduction)
    source, given, *rest = cast(tuple[Any, ...], node.args)
    rank = source.meta["val"].dim()
    dims = [dim % rank for dim in given]
    if dims == [rank - 1] and rest and rest[0]:
        return None
    name = reduction._schema.name.split("::")[1]
    return f"the {name} is over dimensions {dims} of {rank}, not over the last one, kept"
