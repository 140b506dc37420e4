"""add_group_norm_silu: one kernel instead of one operator.

rule       group_norm_activation
module     encoder.layer.0.output
source     model.py:42  return self.norm(self.dense(hidden) + residual)
traffic    5 -> 3 passes over the tensor
captured   [4, 2, 384, 64]
tuned on   not tuned: default configuration
"""

import math

import torch
import triton
import triton.language as tl

BLOCK_SIZE, NUM_WARPS = 4096, 8


@triton.jit
def add_group_norm_silu_kernel(
    x_ptr,
    shift_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    out_ptr,
    n_1,
    n_3,
    n_cols,
    shift_stride_0,
    shift_stride_1,
    shift_stride_2,
    norm_weight_stride_1,
    norm_weight_stride_2,
    norm_bias_stride_1,
    norm_bias_stride_2,
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
):
    """silu from x, shift, norm_weight, norm_bias over rows of 24576."""
    n_cols = n_cols // GROUP * GROUP
    row = tl.program_id(0).to(tl.int64)
    i1 = row % n_1
    i0 = row // n_1

    group_norm_part_mean_total = tl.full((BLOCK_SIZE,), 0.0, tl.float32)
    for start in range(0, n_cols, BLOCK_SIZE):
        cols = start + tl.arange(0, BLOCK_SIZE)
        mask = cols < n_cols
        i2 = cols // n_3
        x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
        shift_offsets = i0 * shift_stride_0 + i1 * shift_stride_1 + i2.to(tl.int64) * shift_stride_2
        shift = tl.load(shift_ptr + shift_offsets, mask=mask, other=0.0).to(tl.float32)
        # add
        add = x + shift
        group_norm_part_mean_total = group_norm_part_mean_total + tl.where(mask, add, 0.0)
    group_norm_part_mean = tl.div_rn(tl.sum(group_norm_part_mean_total, axis=0), n_cols * 1.0)

    group_norm_part_rest_total = tl.full((BLOCK_SIZE,), 0.0, tl.float32)
    for start in range(0, n_cols, BLOCK_SIZE):
        cols = start + tl.arange(0, BLOCK_SIZE)
        mask = cols < n_cols
        i2 = cols // n_3
        x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
        shift_offsets = i0 * shift_stride_0 + i1 * shift_stride_1 + i2.to(tl.int64) * shift_stride_2
        shift = tl.load(shift_ptr + shift_offsets, mask=mask, other=0.0).to(tl.float32)
        # add
        add = x + shift
        # group_norm
        group_norm_part_deviation = add - group_norm_part_mean
        group_norm_part_rest_total = group_norm_part_rest_total + tl.where(
            mask, group_norm_part_deviation, 0.0
        )
    group_norm_part_rest = tl.div_rn(tl.sum(group_norm_part_rest_total, axis=0), n_cols * 1.0)

    group_norm_part_variance_total = tl.full((BLOCK_SIZE,), 0.0, tl.float32)
    for start in range(0, n_cols, BLOCK_SIZE):
        cols = start + tl.arange(0, BLOCK_SIZE)
        mask = cols < n_cols
        i2 = cols // n_3
        x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
        shift_offsets = i0 * shift_stride_0 + i1 * shift_stride_1 + i2.to(tl.int64) * shift_stride_2
        shift = tl.load(shift_ptr + shift_offsets, mask=mask, other=0.0).to(tl.float32)
        # add
        add = x + shift
        # group_norm
        group_norm_part_centered = add - group_norm_part_mean - group_norm_part_rest
        group_norm_part_square = group_norm_part_centered * group_norm_part_centered
        group_norm_part_variance_total = group_norm_part_variance_total + tl.where(
            mask, group_norm_part_square, 0.0
        )
    group_norm_part_variance = tl.div_rn(
        tl.sum(group_norm_part_variance_total, axis=0), n_cols * 1.0
    )
    # group_norm
    group_norm_part_padded = group_norm_part_variance + 1e-12
    group_norm_part_factor = tl.rsqrt(group_norm_part_padded)

    for start in range(0, n_cols, BLOCK_SIZE):
        cols = start + tl.arange(0, BLOCK_SIZE)
        mask = cols < n_cols
        i2 = cols // n_3
        x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
        shift_offsets = i0 * shift_stride_0 + i1 * shift_stride_1 + i2.to(tl.int64) * shift_stride_2
        shift = tl.load(shift_ptr + shift_offsets, mask=mask, other=0.0).to(tl.float32)
        norm_weight_offsets = i1 * norm_weight_stride_1 + i2.to(tl.int64) * norm_weight_stride_2
        norm_weight = tl.load(norm_weight_ptr + norm_weight_offsets, mask=mask, other=0.0)
        norm_weight = norm_weight.to(tl.float32)
        norm_bias_offsets = i1 * norm_bias_stride_1 + i2.to(tl.int64) * norm_bias_stride_2
        norm_bias = tl.load(norm_bias_ptr + norm_bias_offsets, mask=mask, other=0.0).to(tl.float32)
        # add
        add = x + shift
        # group_norm
        group_norm_part_centered = add - group_norm_part_mean - group_norm_part_rest
        group_norm_part = group_norm_part_centered * group_norm_part_factor
        group_norm = group_norm_part * norm_weight + norm_bias
        # silu
        silu = group_norm * tl.sigmoid(group_norm)
        tl.store(out_ptr + row * n_cols + cols, silu, mask=mask)


def add_group_norm_silu(
    x: torch.Tensor, shift: torch.Tensor, norm_weight: torch.Tensor, norm_bias: torch.Tensor
) -> torch.Tensor:
    x = x.contiguous()
    shift = shift.contiguous()
    norm_weight = norm_weight.contiguous()
    norm_bias = norm_bias.contiguous()
    shape = x.shape
    out = torch.empty(shape, dtype=torch.bfloat16, device=x.device)
    n_cols = shape[-2] * shape[-1]
    n_1 = shape[-3]
    n_3 = shape[-1]
    n_rows = out.numel() // max(n_cols, 1)
    if out.numel():
        grid = (n_rows,)
        add_group_norm_silu_kernel[grid](
            x,
            shift,
            norm_weight,
            norm_bias,
            out,
            n_1,
            n_3,
            n_cols,
            shift.stride(-4),
            shift.stride(-3),
            shift.stride(-2),
            norm_weight.stride(-3),
            norm_weight.stride(-2),
            norm_bias.stride(-3),
            norm_bias.stride(-2),
            BLOCK_SIZE=BLOCK_SIZE,
            GROUP=math.gcd(n_cols, 16),
            num_warps=NUM_WARPS,
        )
    return out
