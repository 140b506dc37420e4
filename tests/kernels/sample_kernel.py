"""add_layer_norm: a kernel file as the emitter prints them, with a device function of its own.

rule       add_layer_norm
replaces   add, layer_norm
traffic    5 -> 3 passes over [rows, cols]
"""

import torch
import triton
import triton.language as tl

BLOCK_SIZE, NUM_WARPS = 1024, 4


@triton.jit
def row_mean(values, n_cols):
    return tl.sum(values, axis=0) / n_cols


@triton.jit
def add_layer_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    row_stride,
    n_cols,
    eps,
    BLOCK_SIZE: tl.constexpr,  # noqa: N803
):
    """out = (h - mean(h)) * rsqrt(var(h) + eps) * weight + bias, where h = x + residual."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK_SIZE)
    mask = cols < n_cols
    offsets = row * row_stride + cols

    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + cols, mask=mask, other=0.0).to(tl.float32)

    # add
    h = x + residual
    # layer_norm, two-pass variance
    centered = tl.where(mask, h - row_mean(h, n_cols), 0.0)
    variance = row_mean(centered * centered, n_cols)
    out = centered * tl.rsqrt(variance + eps) * weight + bias

    tl.store(out_ptr + offsets, out, mask=mask)


def add_layer_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    rows, n_cols = x.numel() // x.shape[-1], x.shape[-1]
    out = torch.empty_like(x)
    if rows:
        add_layer_norm_kernel[(rows,)](
            x,
            residual,
            weight,
            bias,
            out,
            n_cols,
            n_cols,
            eps,
            BLOCK_SIZE=BLOCK_SIZE,
            num_warps=NUM_WARPS,
        )
    return out
