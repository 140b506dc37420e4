"""layer_scale_add_layer_norm: one kernel instead of one operator.

rule       add_layer_norm
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
def layer_scale_add_layer_norm_kernel(
    scale_ptr,
    x_ptr,
    residual_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    out_ptr,
    n_cols,
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
):
    """layer_norm from scale, x, residual, norm_weight, norm_bias over rows of 768."""
    n_cols = n_cols // GROUP * GROUP
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK_SIZE)
    mask = cols < n_cols

    scale = tl.load(scale_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    norm_weight = tl.load(norm_weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    norm_bias = tl.load(norm_bias_ptr + cols, mask=mask, other=0.0).to(tl.float32)

    # mul
    mul = scale * x
    # add
    add = residual + mul
    # layer_norm
    mean = tl.sum(tl.where(mask, add, 0.0), axis=0) / n_cols
    centered = tl.where(mask, add - mean, 0.0)
    centered = tl.where(mask, centered - tl.sum(centered, axis=0) / n_cols, 0.0)
    variance = tl.sum(centered * centered, axis=0) / n_cols
    layer_norm = centered * tl.rsqrt(variance + 1e-12) * norm_weight + norm_bias

    tl.store(out_ptr + row * n_cols + cols, layer_norm, mask=mask)


def layer_scale_add_layer_norm(
    scale: torch.Tensor,
    x: torch.Tensor,
    residual: torch.Tensor,
    norm_weight: torch.Tensor,
    norm_bias: torch.Tensor,
) -> torch.Tensor:
    scale = scale.contiguous()
    x = x.contiguous()
    residual = residual.contiguous()
    norm_weight = norm_weight.contiguous()
    norm_bias = norm_bias.contiguous()
    shape = x.shape
    out = torch.empty(shape, dtype=torch.bfloat16, device=scale.device)
    n_cols = shape[-1]
    n_rows = out.numel() // max(n_cols, 1)
    if out.numel():
        grid = (n_rows,)
        layer_scale_add_layer_norm_kernel[grid](
            scale,
            x,
            residual,
            norm_weight,
            norm_bias,
            out,
            n_cols,
            BLOCK_SIZE=BLOCK_SIZE,
            GROUP=math.gcd(n_cols, 16),
            num_warps=NUM_WARPS,
        )
    return out
