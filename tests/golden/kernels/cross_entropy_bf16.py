"""cross_entropy: one kernel instead of one operator.

rule       cross_entropy
module     encoder.layer.0.output
source     model.py:42  return self.norm(self.dense(hidden) + residual)
traffic    5 -> 3 passes over the tensor
captured   [64, 768]
tuned on   not tuned: default configuration
"""

import math

import torch
import triton
import triton.language as tl

BLOCK_SIZE, NUM_WARPS = 1024, 4


@triton.jit
def cross_entropy_kernel(
    logits_ptr,
    target_ptr,
    logits_2_ptr,
    out_ptr,
    n_cols,
    logits_2_stride_0,
    logits_2_stride_table,
    logits_2_size_table,
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
):
    """sub from logits, target, logits_2 over rows of 768."""
    n_cols = n_cols // GROUP * GROUP
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK_SIZE)
    mask = cols < n_cols

    logits = tl.load(logits_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    target = tl.load(target_ptr + row)

    # logsumexp
    logsumexp_part = tl.max(tl.where(mask, logits, float("-inf")), axis=0)
    logsumexp_part_4 = tl.where(tl.abs(logsumexp_part) < float("inf"), logsumexp_part, 0.0)
    logsumexp_part_6 = tl.exp(logits - logsumexp_part_4)
    logsumexp_part_7 = tl.sum(tl.where(mask, logsumexp_part_6, 0.0), axis=0)
    logsumexp = tl.log(logsumexp_part_7) + logsumexp_part_4
    # gather
    gather_pointers = (
        logits_2_ptr + row * logits_2_stride_0 + target.to(tl.int64) * logits_2_stride_table
    )
    gather = tl.load(
        gather_pointers, mask=(target >= 0) & (target < logits_2_size_table), other=float("nan")
    )
    gather = gather.to(tl.float32)
    # sub
    sub = logsumexp - gather

    tl.store(out_ptr + row, sub)


def cross_entropy(
    logits: torch.Tensor, target: torch.Tensor, logits_2: torch.Tensor
) -> torch.Tensor:
    logits = logits.contiguous()
    target = target.contiguous()
    shape = logits.shape
    out = torch.empty((shape[-2], 1), dtype=torch.bfloat16, device=logits.device)
    n_cols = shape[-1]
    n_rows = shape[-2]
    if n_rows:
        grid = (n_rows,)
        cross_entropy_kernel[grid](
            logits,
            target,
            logits_2,
            out,
            n_cols,
            logits_2.stride(-3),
            logits_2.stride(-1),
            logits_2.shape[-1],
            BLOCK_SIZE=BLOCK_SIZE,
            GROUP=math.gcd(n_cols, 16),
            num_warps=NUM_WARPS,
        )
    return out
