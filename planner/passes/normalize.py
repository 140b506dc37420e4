"""The passes that bring every captured program into the form analysis and matching expect, in
order.
"""

from __future__ import annotations

from planner.passes.fold_constants import fold_constants
from planner.passes.masks import simplify_masks
from planner.passes.noops import drop_asserts, drop_noops
from planner.passes.runner import Pass

NORMALIZE: tuple[tuple[str, Pass], ...] = (
    ("drop_asserts", drop_asserts),
    ("drop_noops", drop_noops),
    ("fold_constants", fold_constants),
    ("simplify_masks", simplify_masks),
)
