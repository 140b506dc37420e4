"""The rewrites of the program that is fused, in order: those that always help, and those that must
win a race first.

The captured program, which is what is ranked and the reference of every check, stays as the user
wrote it.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.passes.activated_linear import activated_linears
from planner.passes.attention_layout import read_attention_as_it_lies
from planner.passes.cancel_pairs import cancel_pairs
from planner.passes.common_subexpressions import common_subexpressions
from planner.passes.fold_batch_norm import fold_batch_norm
from planner.passes.fused_convolution import fused_convolution
from planner.passes.masks import simplify_masks
from planner.passes.merge_linears import merge_linears
from planner.passes.noops import drop_idle_copies, drop_noops
from planner.passes.numbers import write_numbers
from planner.passes.runner import Pass
from planner.passes.written_out_attention import written_out_attention

Passes = tuple[tuple[str, Pass], ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """A rewrite to be tried on a copy, and passes that clean up after it.

    It stays where it is not measured slower; one that `must_win` only where it is faster. That is
    for copies of large weights (on a CPU one product of 2,304 columns took between 0.8 and 2.2
    times as long as three of 768), and for what a kernel could otherwise take in.
    """

    passes: Passes
    must_win: bool = False


REWRITES: Passes = (
    ("write_numbers", write_numbers),
    ("common_subexpressions", common_subexpressions),
    ("cancel_pairs", cancel_pairs),
    ("drop_noops", drop_noops),
    ("drop_idle_copies", drop_idle_copies),
)

RACED: tuple[Trial, ...] = (
    Trial((("fold_batch_norm", fold_batch_norm),)),
    Trial(
        (
            ("written_out_attention", written_out_attention),
            ("simplify_masks", simplify_masks),
            ("cancel_pairs", cancel_pairs),
            ("drop_noops", drop_noops),
        )
    ),
    Trial((("read_attention_as_it_lies", read_attention_as_it_lies),)),
    Trial((("merge_linears", merge_linears),), must_win=True),
    Trial((("fused_convolution", fused_convolution),), must_win=True),
    Trial((("activated_linears", activated_linears),)),
)
