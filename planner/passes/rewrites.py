"""The rewrites of the program that is fused, in order: those that always help, and those that must
win a race first.

The captured program, which is what is ranked and the reference of every check, stays as the user
wrote it.
"""

from __future__ import annotations

from planner.passes.cancel_pairs import cancel_pairs
from planner.passes.common_subexpressions import common_subexpressions
from planner.passes.fold_batch_norm import fold_batch_norm
from planner.passes.masks import simplify_masks
from planner.passes.noops import drop_noops
from planner.passes.runner import Pass
from planner.passes.written_out_attention import written_out_attention

Passes = tuple[tuple[str, Pass], ...]

REWRITES: Passes = (
    ("common_subexpressions", common_subexpressions),
    ("cancel_pairs", cancel_pairs),
    ("drop_noops", drop_noops),
)

RACED: tuple[Passes, ...] = (
    (("fold_batch_norm", fold_batch_norm),),
    (
        ("written_out_attention", written_out_attention),
        ("simplify_masks", simplify_masks),
        ("cancel_pairs", cancel_pairs),
        ("drop_noops", drop_noops),
    ),
)
"""Each is tried on a copy. The first pass of each is the rewrite, the others clean up after it."""
