"""permuted_layer_norm: one kernel instead of one operator.

rule       permuted_layer_norm
module     encoder.layer.0.output
source     model.py:42  return self.norm(self.dense(hidden) + residual)
traffic    5 -> 3 passes over the tensor
captured   [4, 64, 768]
tuned on   not tuned: default configuration
"""

import math

import torch
import triton
import triton.language as tl

BLOCK_SIZE, NUM_WARPS = 1024, 4


@triton.jit
def permuted_layer_norm_kernel(
    x_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    out_ptr,
    n_1,
    n_cols,
    x_stride_0,
    x_stride_1,
    x_stride_2,
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
):
    """layer_norm from x, norm_weight, norm_bias over rows of 768."""
    n_cols = n_cols // GROUP * GROUP
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK_SIZE)
    mask = cols < n_cols
    i1 = row % n_1
    i0 = row // n_1

    x_offsets = i0 * x_stride_0 + i1 * x_stride_1 + cols.to(tl.int64) * x_stride_2
    x = tl.load(x_ptr + x_offsets, mask=mask, other=0.0).to(tl.float32)
    norm_weight = tl.load(norm_weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    norm_bias = tl.load(norm_bias_ptr + cols, mask=mask, other=0.0).to(tl.float32)

    # layer_norm
    mean = tl.sum(tl.where(mask, x, 0.0), axis=0) / n_cols
    centered = tl.where(mask, x - mean, 0.0)
    centered = tl.where(mask, centered - tl.sum(centered, axis=0) / n_cols, 0.0)
    variance = tl.sum(centered * centered, axis=0) / n_cols
    layer_norm = centered * tl.rsqrt(variance + 1e-12) * norm_weight + norm_bias

    tl.store(out_ptr + row * n_cols + cols, layer_norm, mask=mask)


def permuted_layer_norm(
    x: torch.Tensor, norm_weight: torch.Tensor, norm_bias: torch.Tensor
) -> torch.Tensor:
    norm_weight = norm_weight.contiguous()
    norm_bias = norm_bias.contiguous()
    shape = torch.broadcast_shapes(x.shape, norm_weight.shape, norm_bias.shape)
    out = torch.empty(shape, dtype=torch.bfloat16, device=x.device)
    n_cols = shape[-1]
    n_1 = shape[-2]
    n_rows = out.numel() // max(n_cols, 1)
    if out.numel():
        grid = (n_rows,)
        permuted_layer_norm_kernel[grid](
            x,
            norm_weight,
            norm_bias,
            out,
            n_1,
            n_cols,
            x.stride(-3),
            x.stride(-2),
            x.stride(-1),
            BLOCK_SIZE=BLOCK_SIZE,
            GROUP=math.gcd(n_cols, 16),
            num_warps=NUM_WARPS,
        )
    return out
