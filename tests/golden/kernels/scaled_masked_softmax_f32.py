"""scaled_masked_softmax: one kernel instead of one operator.

rule       masked_softmax
module     encoder.layer.0.output
source     model.py:42  return self.norm(self.dense(hidden) + residual)
traffic    5 -> 3 passes over the tensor
captured   [4, 128, 768]
tuned on   not tuned: default configuration
"""

import math

import torch
import triton
import triton.language as tl

BLOCK_SIZE, NUM_WARPS = 1024, 4


@triton.jit
def scaled_masked_softmax_kernel(
    scores_ptr, mask_2_ptr, out_ptr, n_cols, BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr
):
    """softmax from scores, mask_2 over rows of 768."""
    n_cols = n_cols // GROUP * GROUP
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK_SIZE)
    mask = cols < n_cols

    scores = tl.load(scores_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    mask_2 = tl.load(mask_2_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)

    # mul
    mul = scores * 0.125
    # add
    add = mul + mask_2
    # softmax
    softmax_part = tl.max(tl.where(mask, add, float("-inf")), axis=0)
    softmax_part_3 = tl.exp(add - softmax_part)
    softmax_part_4 = tl.sum(tl.where(mask, softmax_part_3, 0.0), axis=0)
    softmax = tl.div_rn(softmax_part_3, softmax_part_4)

    tl.store(out_ptr + row * n_cols + cols, softmax, mask=mask)


def scaled_masked_softmax(scores: torch.Tensor, mask_2: torch.Tensor) -> torch.Tensor:
    scores = scores.contiguous()
    mask_2 = mask_2.contiguous()
    shape = scores.shape
    out = torch.empty(shape, dtype=torch.float32, device=scores.device)
    n_cols = shape[-1]
    n_rows = out.numel() // max(n_cols, 1)
    if out.numel():
        grid = (n_rows,)
        scaled_masked_softmax_kernel[grid](
            scores,
            mask_2,
            out,
            n_cols,
            BLOCK_SIZE=BLOCK_SIZE,
            GROUP=math.gcd(n_cols, 16),
            num_warps=NUM_WARPS,
        )
    return out
