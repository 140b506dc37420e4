"""masked_scores: one kernel instead of one operator.

rule       pointwise_chain
captured   [4, 12, 128, 128]
tuned on   not tuned: default configuration
"""

import math

import torch
import triton
import triton.language as tl

ROWS, BLOCK_SIZE, NUM_WARPS = 8, 128, 4


@triton.jit
def masked_scores_kernel(
    scores_ptr,
    bias_ptr,
    keep_ptr,
    out_ptr,
    n_rows,
    n_1,
    n_cols,
    keep_stride_0,
    ROWS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
):
    """clamp from scores, bias, keep."""
    n_cols = n_cols // GROUP * GROUP
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    cols = (tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE))[None, :]
    row_mask = row < n_rows
    col_mask = cols < n_cols
    mask = row_mask & col_mask
    i0 = row // n_1

    scores = tl.load(scores_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + cols, mask=col_mask, other=0.0).to(tl.float32)
    keep = tl.load(keep_ptr + i0 * keep_stride_0 + cols, mask=mask, other=0)

    # mul
    mul = scores * 0.125
    # add
    add = mul + bias
    # bitwise_not
    bitwise_not = ~keep
    # masked_fill
    masked_fill = tl.where(bitwise_not, float("-inf"), add)
    # clamp
    clamp = tl.where(masked_fill > 10000.0, 10000.0, masked_fill)

    tl.store(out_ptr + row * n_cols + cols, clamp, mask=mask)


def masked_scores(scores: torch.Tensor, bias: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    scores = scores.contiguous()
    bias = bias.contiguous()
    keep = keep.contiguous()
    shape = scores.shape
    out = torch.empty(shape, dtype=torch.float32, device=scores.device)
    n_cols = shape[-1]
    n_1 = shape[-3] * shape[-2]
    n_rows = out.numel() // max(n_cols, 1)
    if out.numel():
        grid = (triton.cdiv(n_rows, ROWS), triton.cdiv(n_cols, BLOCK_SIZE))
        masked_scores_kernel[grid](
            scores,
            bias,
            keep,
            out,
            n_rows,
            n_1,
            n_cols,
            keep.stride(-4),
            ROWS=ROWS,
            BLOCK_SIZE=BLOCK_SIZE,
            GROUP=math.gcd(n_cols, 16),
            num_warps=NUM_WARPS,
        )
    return out
