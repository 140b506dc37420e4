"""rope_interleaved: one kernel instead of one operator.

rule       rope
module     encoder.layer.0.output
source     model.py:42  return self.norm(self.dense(hidden) + residual)
traffic    5 -> 3 passes over the tensor
captured   [4, 128, 384, 2]
tuned on   not tuned: default configuration
"""

import math

import torch
import triton
import triton.language as tl

ROWS, BLOCK_SIZE, NUM_WARPS = 512, 2, 4


@triton.jit
def rope_interleaved_kernel(
    x_ptr,
    cos_ptr,
    second_ptr,
    first_ptr,
    sin_ptr,
    out_ptr,
    n_rows,
    n_cols,
    ROWS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
):
    """add from x, cos, second, first, sin."""
    n_cols = n_cols // GROUP * GROUP
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    cols = (tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE))[None, :]
    row_mask = row < n_rows
    col_mask = cols < n_cols
    mask = row_mask & col_mask

    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(second_ptr + row, mask=row_mask, other=0.0).to(tl.float32)
    first = tl.load(first_ptr + row, mask=row_mask, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)

    # mul
    mul = x * cos
    # neg
    neg = -1.0 * second
    # stack
    stack = tl.where(cols < 1, neg, first)
    # mul_1
    mul_2 = stack * sin
    # add
    add = mul + mul_2

    tl.store(out_ptr + row * n_cols + cols, add, mask=mask)


def rope_interleaved(
    x: torch.Tensor, cos: torch.Tensor, second: torch.Tensor, first: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    x = x.contiguous()
    cos = cos.contiguous()
    second = second.contiguous()
    first = first.contiguous()
    sin = sin.contiguous()
    shape = x.shape
    out = torch.empty(shape, dtype=torch.float32, device=x.device)
    n_cols = shape[-1]
    n_rows = out.numel() // max(n_cols, 1)
    if out.numel():
        grid = (triton.cdiv(n_rows, ROWS), triton.cdiv(n_cols, BLOCK_SIZE))
        rope_interleaved_kernel[grid](
            x,
            cos,
            second,
            first,
            sin,
            out,
            n_rows,
            n_cols,
            ROWS=ROWS,
            BLOCK_SIZE=BLOCK_SIZE,
            GROUP=math.gcd(n_cols, 16),
            num_warps=NUM_WARPS,
        )
    return out
