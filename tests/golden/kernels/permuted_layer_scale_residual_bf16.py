"""permuted_layer_scale_residual: one kernel instead of one operator.

rule       scaled_residual
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

ROWS, BLOCK_SIZE, NUM_WARPS = 16, 64, 4


@triton.jit
def permuted_layer_scale_residual_kernel(
    scale_ptr,
    x_ptr,
    residual_ptr,
    out_ptr,
    n_rows,
    n_1,
    n_cols,
    scale_stride_1,
    x_stride_0,
    x_stride_1,
    x_stride_2,
    ROWS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
):
    """add from scale, x, residual."""
    n_cols = n_cols // GROUP * GROUP
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    cols = (tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE))[None, :]
    row_mask = row < n_rows
    col_mask = cols < n_cols
    mask = row_mask & col_mask
    i1 = row % n_1
    i0 = row // n_1

    scale = tl.load(scale_ptr + i1 * scale_stride_1, mask=row_mask, other=0.0).to(tl.float32)
    x_offsets = i0 * x_stride_0 + i1 * x_stride_1 + cols.to(tl.int64) * x_stride_2
    x = tl.load(x_ptr + x_offsets, mask=mask, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)

    # mul
    mul = scale * x
    # add
    add = residual + mul

    tl.store(out_ptr + row * n_cols + cols, add, mask=mask)


def permuted_layer_scale_residual(
    scale: torch.Tensor, x: torch.Tensor, residual: torch.Tensor
) -> torch.Tensor:
    scale = scale[None, None]
    scale = scale.permute(0, 2, 1).contiguous()
    x = x.permute(0, 2, 1)
    residual = residual.permute(0, 2, 1).contiguous()
    shape = residual.shape
    out = torch.empty(shape, dtype=torch.bfloat16, device=scale.device)
    n_cols = shape[-1]
    n_1 = shape[-2]
    n_rows = out.numel() // max(n_cols, 1)
    if out.numel():
        grid = (triton.cdiv(n_rows, ROWS), triton.cdiv(n_cols, BLOCK_SIZE))
        permuted_layer_scale_residual_kernel[grid](
            scale,
            x,
            residual,
            out,
            n_rows,
            n_1,
            n_cols,
            scale.stride(-2),
            x.stride(-3),
            x.stride(-2),
            x.stride(-1),
            ROWS=ROWS,
            BLOCK_SIZE=BLOCK_SIZE,
            GROUP=math.gcd(n_cols, 16),
            num_warps=NUM_WARPS,
        )
    return out.permute(0, 2, 1)
