"""Cross entropy of each row: logsumexp(x) - x[target], 0 where the target is to be ignored.

One kernel reads the logits once or twice and stores a number a row. As `cross_entropy_loss` and
`nll_loss` of `log_softmax` are once they are taken apart, and as models write it out.
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


def _counted_row(logits: Any, target: Any, counted: Any) -> Any:
    return torch.where(counted, _row(logits, target), 0.0)


def _filled_row(logits: Any, target: Any, ignored: Any) -> Any:
    return _row(logits, target).masked_fill(ignored, 0.0)


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


_INDICES = frozenset({"target"})
RULE = FusionRule(
    "cross_entropy",
    (
        Variant(
            "cross_entropy_ignoring",
            _counted_row,
            {**_ROWS, "counted": (16,)},
            masks=frozenset({"counted"}),
            indices=_INDICES,
        ),
        Variant(
            "cross_entropy_filled",
            _filled_row,
            {**_ROWS, "ignored": (16,)},
            masks=frozenset({"ignored"}),
            indices=_INDICES,
        ),
        Variant("cross_entropy", _row, _ROWS, indices=_INDICES, spellings=(_kept_row,)),
    ),
    _check,
)
