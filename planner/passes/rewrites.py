"""The exact rewrites of the program that is fused, in order. The captured program, which is what
is ranked and the reference of every check, stays as the user wrote it.
"""

from __future__ import annotations

from planner.passes.cancel_pairs import cancel_pairs
from planner.passes.common_subexpressions import common_subexpressions
from planner.passes.noops import drop_noops
from planner.passes.runner import Pass

REWRITES: tuple[tuple[str, Pass], ...] = (
    ("common_subexpressions", common_subexpressions),
    ("cancel_pairs", cancel_pairs),
    ("drop_noops", drop_noops),
)
