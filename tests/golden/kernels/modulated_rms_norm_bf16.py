"""modulated_rms_norm: one kernel instead of one operator.

rule       modulated_norm
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
def modulated_rms_norm_kernel(
    x_ptr,
    scale_ptr,
    shift_ptr,
    out_ptr,
    n_1,
    n_cols,
    scale_stride_0,
    shift_stride_0,
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
):
    """add_3 from x, scale, shift over rows of 768."""
    n_cols = n_cols // GROUP * GROUP
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK_SIZE)
    mask = cols < n_cols
    i0 = row // n_1

    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    scale = tl.load(scale_ptr + i0 * scale_stride_0 + cols, mask=mask, other=0.0).to(tl.float32)
    shift = tl.load(shift_ptr + i0 * shift_stride_0 + cols, mask=mask, other=0.0).to(tl.float32)

    # pow_1
    pow = x * x
    # mean
    mean_2 = tl.div_rn(tl.sum(tl.where(mask, pow, 0.0), axis=0), n_cols * 1.0)
    # add
    add = mean_2 + 1e-12
    # rsqrt
    rsqrt = tl.rsqrt(add)
    # mul
    mul = x * rsqrt
    # add_1
    add_2 = scale + 1.0
    # mul_1
    mul_2 = mul * add_2
    # add_2
    add_3 = mul_2 + shift

    tl.store(out_ptr + row * n_cols + cols, add_3, mask=mask)


def modulated_rms_norm(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    scale = scale.contiguous()
    shift = shift.contiguous()
    shape = x.shape
    out = torch.empty(shape, dtype=torch.bfloat16, device=x.device)
    n_cols = shape[-1]
    n_1 = shape[-2]
    n_rows = out.numel() // max(n_cols, 1)
    if out.numel():
        grid = (n_rows,)
        modulated_rms_norm_kernel[grid](
            x,
            scale,
            shift,
            out,
            n_1,
            n_cols,
            scale.stride(-3),
            shift.stride(-3),
            BLOCK_SIZE=BLOCK_SIZE,
            GROUP=math.gcd(n_cols, 16),
            num_warps=NUM_WARPS,
        )
    return out
