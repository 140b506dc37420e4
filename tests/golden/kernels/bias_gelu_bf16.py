"""bias_gelu: one kernel instead of one operator.

rule       gelu_residual
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
def erf(x):
    """x * P(x*x) / Q(x*x), exactly +-1 from |x| = 3.8325069 on; error below 4e-7."""
    t = x * x
    p = 2.0970284413262273e-08
    p = p * t + -1.9857499556633534e-06
    p = p * t + 0.00013665661269716435
    p = p * t + 0.0034052197163495952
    p = p * t + 0.04959677763822328
    p = p * t + 0.19243239156253186
    p = p * t + 1.1283791223633086
    q = 0.0008903982240656636
    q = q * t + 0.013731269005992265
    q = q * t + 0.11191800342415839
    q = q * t + 0.5038707893798171
    q = q * t + 1.0
    return tl.where(tl.abs(x) >= 3.8325069, tl.where(x < 0.0, -1.0, 1.0), x * p / q)


@triton.jit
def bias_gelu_kernel(
    x_ptr, bias_ptr, out_ptr, n_cols, BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr
):
    """gelu from x, bias."""
    n_cols = n_cols // GROUP * GROUP
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = cols < n_cols

    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + cols, mask=mask, other=0.0).to(tl.float32)

    # add
    add = x + bias
    # gelu
    gelu = add * 0.5 * (erf(add * 0.7071067811865476) + 1.0)

    tl.store(out_ptr + row * n_cols + cols, gelu, mask=mask)


def bias_gelu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    bias = bias.contiguous()
    shape = x.shape
    out = torch.empty(shape, dtype=torch.bfloat16, device=x.device)
    n_cols = shape[-1]
    n_rows = out.numel() // max(n_cols, 1)
    if out.numel():
        grid = (n_rows, triton.cdiv(n_cols, BLOCK_SIZE))
        bias_gelu_kernel[grid](
            x,
            bias,
            out,
            n_cols,
            BLOCK_SIZE=BLOCK_SIZE,
            GROUP=math.gcd(n_cols, 16),
            num_warps=NUM_WARPS,
        )
    return out
