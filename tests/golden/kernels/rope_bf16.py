"""rope: one kernel instead of one operator.

rule       rope
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
def rope_kernel(
    x_ptr,
    cos_ptr,
    second_ptr,
    first_ptr,
    sin_ptr,
    out_ptr,
    n_1,
    n_cols,
    second_stride_0,
    second_stride_1,
    second_stride_2,
    first_stride_0,
    first_stride_1,
    first_stride_2,
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
):
    """add from x, cos, second, first, sin."""
    n_cols = n_cols // GROUP * GROUP
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = cols < n_cols
    i1 = row % n_1
    i0 = row // n_1

    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    second_offsets = (
        i0 * second_stride_0 + i1 * second_stride_1 + cols.to(tl.int64) * second_stride_2
    )
    second = tl.load(second_ptr + second_offsets, mask=mask & (cols < 384), other=0.0)
    second = second.to(tl.float32)
    first_offsets = (
        i0 * first_stride_0 + i1 * first_stride_1 + (cols.to(tl.int64) - 384) * first_stride_2
    )
    first = tl.load(first_ptr + first_offsets, mask=mask & (cols >= 384), other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)

    # mul
    mul = x * cos
    # neg
    neg = -1.0 * second
    # cat
    cat = tl.where(cols < 384, neg, first)
    # mul_1
    mul_2 = cat * sin
    # add
    add = mul + mul_2

    tl.store(out_ptr + row * n_cols + cols, add, mask=mask)


def rope(
    x: torch.Tensor, cos: torch.Tensor, second: torch.Tensor, first: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    x = x.contiguous()
    cos = cos.contiguous()
    sin = sin.contiguous()
    shape = x.shape
    out = torch.empty(shape, dtype=torch.bfloat16, device=x.device)
    n_cols = shape[-1]
    n_1 = shape[-2]
    n_rows = out.numel() // max(n_cols, 1)
    if out.numel():
        grid = (n_rows, triton.cdiv(n_cols, BLOCK_SIZE))
        rope_kernel[grid](
            x,
            cos,
            second,
            first,
            sin,
            out,
            n_1,
            n_cols,
            second.stride(-3),
            second.stride(-2),
            second.stride(-1),
            first.stride(-3),
            first.stride(-2),
            first.stride(-1),
            BLOCK_SIZE=BLOCK_SIZE,
            GROUP=math.gcd(n_cols, 16),
            num_warps=NUM_WARPS,
        )
    return out
