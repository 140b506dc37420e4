"""Every variant of every named rule against its pattern in float64: as torch operations and as
Triton text, over ragged, single, empty and transposed rows.
"""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from fusion_kernels.builder import NotLowered
from rule_calls import VARIANTS, call_of

ROWS = {"ragged": (2, 3), "one row": (1, 1), "empty": (0, 3), "transposed": (2, 3)}
# A view of a tensor without elements has no dimensions to follow: nothing is fused there.
REFUSED = {("rope_interleaved", "empty")}


def _transposed(tensor: Tensor) -> Tensor:
    """The same values, with the first two dimensions' order in memory changed."""
    if tensor.dim() < 2:
        return tensor
    return tensor.transpose(0, 1).contiguous().transpose(0, 1)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_rule_s_kernel_is_right(name: str, rows: str, traced: Any, assert_right: Any) -> None:
    call = call_of(name, ROWS[rows])
    tensors = tuple(map(_transposed, call.tensors)) if rows == "transposed" else call.tensors
    if (name, rows) in REFUSED:
        with pytest.raises(NotLowered):
            traced(call.function, *tensors, name=name)
    else:
        assert_right(traced(call.function, *tensors, name=name))
