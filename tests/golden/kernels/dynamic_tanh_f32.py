"""dynamic_tanh: one kernel instead of one operator.

rule       dynamic_tanh
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
def tanh(x):
    """x * P(x*x) / Q(x*x), exactly +-1 from |x| = 9.0 on; error below 4e-7."""
    t = x * x
    p = -1.2246235369038936e-11
    p = p * t + 3.064251196952948e-08
    p = p * t + 2.8031303863790978e-05
    p = p * t + 0.003869507623994252
    p = p * t + 0.1368085614035101
    p = p * t + 0.9999999987231394
    q = 1.2890346179461317e-06
    q = q * t + 0.000394071274571344
    q = q * t + 0.02725015524288126
    q = q * t + 0.4701418823011837
    q = q * t + 1.0
    return tl.where(tl.abs(x) >= 9.0, tl.where(x < 0.0, -1.0, 1.0), x * p / q)


@triton.jit
def dynamic_tanh_kernel(
    alpha_ptr,
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    n_cols,
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
):
    """add from alpha, x, weight, bias."""
    n_cols = n_cols // GROUP * GROUP
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = cols < n_cols

    alpha = tl.load(alpha_ptr).to(tl.float32)
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + cols, mask=mask, other=0.0).to(tl.float32)

    # mul
    mul = alpha * x
    # tanh
    tanh_2 = tanh(mul)
    # mul_1
    mul_2 = weight * tanh_2
    # add
    add = mul_2 + bias

    tl.store(out_ptr + row * n_cols + cols, add, mask=mask)


def dynamic_tanh(
    alpha: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    alpha = alpha.contiguous()
    x = x.contiguous()
    weight = weight.contiguous()
    bias = bias.contiguous()
    shape = x.shape
    out = torch.empty(shape, dtype=torch.float32, device=alpha.device)
    n_cols = shape[-1]
    n_rows = out.numel() // max(n_cols, 1)
    if out.numel():
        grid = (n_rows, triton.cdiv(n_cols, BLOCK_SIZE))
        dynamic_tanh_kernel[grid](
            alpha,
            x,
            weight,
            bias,
            out,
            n_cols,
            BLOCK_SIZE=BLOCK_SIZE,
            GROUP=math.gcd(n_cols, 16),
            num_warps=NUM_WARPS,
        )
    return out
