"""`aten._grouped_mm` in dtypes that torch has no kernel for, float64 above all."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor


def grouped_product(
    left: Tensor,
    right: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: Any = None,  # noqa: ARG001 - as the operator has it; the result is not rounded
) -> Tensor:
    """The product of each group, one matrix product after the other, in the operands' dtype.

    `offs` holds where each group ends: of the rows of `left` [M, K] for `right` [G, K, N], of the
    columns of `right` [K, N] for `left` [G, M, K], of K for two flat operands, whose result is [G,
    M, N]. Without it both have a leading G. Rows and columns behind the last end are zero; torch
    leaves them as they come. `bias` is added as it broadcasts.
    """
    if offs is None:
        result = torch.bmm(left, right)
    else:
        result = _cut(left, right, [0, *map(int, offs.tolist())])
    return result if bias is None else result + bias


def _cut(left: Tensor, right: Tensor, ends: list[int]) -> Tensor:
    spans = list(enumerate(itertools.pairwise(ends)))
    if left.dim() == right.dim() == 2:
        return torch.stack([left[:, a:b] @ right[a:b] for _, (a, b) in spans])
    result = left.new_zeros(left.shape[-2], right.shape[-1])
    for group, (a, b) in spans:
        if left.dim() == 2:
            result[a:b] = left[a:b] @ right[group]
        else:
            result[:, a:b] = left[group] @ right[:, a:b]
    return result
