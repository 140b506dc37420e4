"""Cross entropy of each row: logsumexp(x) - x[target].

One kernel reads the logits once or twice and stores a number a row. As `cross_entropy_loss` and
`nll_loss` of `log_softmax` are once they are taken apart, and as models write it out. What puts 0
where a target is to be ignored is no part of the rule: it joins this kernel or that of the sum.
"""

from __future__ import annotations

from typing import Any

import torch

from fusion_kernels.rule import FusionRule, Match, Variant

_ROWS: dict[str, tuple[int, ...] | float] = {"logits": (16, 8), "target": (16, 1)}


def _row(logits: Any, target: Any) -> Any:
    return torch.logsumexp(logits, 1) - torch.gather(logits, 1, target).squeeze(1)


def _kept_row(logits: Any, target: Any) -> Any:
    return torch.logsumexp(logits, 1, True) - torch.gather(logits, 1, target)


def _check(match: Match) -> str | None:
    """The classes must be the last dimension, whole and of every row."""
    (node,) = (n for n in match.nodes if n.target == torch.ops.aten.logsumexp.default)
    source: Any = node.args[0]
    dims: Any = node.args[1]
    rank = source.meta["val"].dim()
    if [dim % rank for dim in dims] != [rank - 1]:
        return f"the logsumexp is over dimensions {list(dims)} of {rank}, not over the last one"
    if match.shape("target") != (*match.shape("logits")[:-1], 1):
        return f"targets of shape {match.shape('target')} are not one a row"
    return None


RULE = FusionRule(
    "cross_entropy",
    (Variant("cross_entropy", _row, _ROWS, indices=frozenset({"target"}), spellings=(_kept_row,)),),
    _check,
)
