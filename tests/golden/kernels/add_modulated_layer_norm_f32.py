"""add_modulated_layer_norm: one kernel instead of one operator.

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
def add_modulated_layer_norm_kernel(
    x_ptr,
    residual_ptr,
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
    """add_3 from x, residual, scale, shift over rows of 768."""
    n_cols = n_cols // GROUP * GROUP
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK_SIZE)
    mask = cols < n_cols
    i0 = row // n_1

    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    scale = tl.load(scale_ptr + i0 * scale_stride_0 + cols, mask=mask, other=0.0).to(tl.float32)
    shift = tl.load(shift_ptr + i0 * shift_stride_0 + cols, mask=mask, other=0.0).to(tl.float32)

    # add
    add = x + residual
    # layer_norm
    mean = tl.sum(tl.where(mask, add, 0.0), axis=0) / n_cols
    centered = tl.where(mask, add - mean, 0.0)
    centered = tl.where(mask, centered - tl.sum(centered, axis=0) / n_cols, 0.0)
    variance = tl.sum(centered * centered, axis=0) / n_cols
    layer_norm = centered * tl.rsqrt(variance + 1e-12)
    # add_1
    add_2 = scale + 1.0
    # mul
    mul = layer_norm * add_2
    # add_2
    add_3 = mul + shift

    tl.store(out_ptr + row * n_cols + cols, add_3, mask=mask)


def add_modulated_layer_norm(
    x: torch.Tensor, residual: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor
) -> torch.Tensor:
    x = x.contiguous()
    residual = residual.contiguous()
    scale = scale.contiguous()
    shift = shift.contiguous()
    shape = x.shape
    out = torch.empty(shape, dtype=torch.float32, device=x.device)
    n_cols = shape[-1]
    n_1 = shape[-2]
    n_rows = out.numel() // max(n_cols, 1)
    if out.numel():
        grid = (n_rows,)
        add_modulated_layer_norm_kernel[grid](
            x,
            residual,
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
