"""l2_norm: one kernel instead of one operator.

rule       l2_norm
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
def l2_norm_kernel(x_ptr, out_ptr, n_cols, BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr):
    """mul from x over rows of 768."""
    n_cols = n_cols // GROUP * GROUP
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK_SIZE)
    mask = cols < n_cols

    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)

    # pow_1
    pow = x * x
    # sum_1
    sum = tl.sum(tl.where(mask, pow, 0.0), axis=0)
    # add
    add = sum + 1e-12
    # rsqrt
    rsqrt = tl.rsqrt(add)
    # mul
    mul = x * rsqrt

    tl.store(out_ptr + row * n_cols + cols, mul, mask=mask)


def l2_norm(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    shape = x.shape
    out = torch.empty(shape, dtype=torch.float32, device=x.device)
    n_cols = shape[-1]
    n_rows = out.numel() // max(n_cols, 1)
    if out.numel():
        grid = (n_rows,)
        l2_norm_kernel[grid](
            x, out, n_cols, BLOCK_SIZE=BLOCK_SIZE, GROUP=math.gcd(n_cols, 16), num_warps=NUM_WARPS
        )
    return out
