"""softcap: one kernel instead of one operator.

rule       softcap
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
def softcap_kernel(x_ptr, out_ptr, n_elements, BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr):
    """mul from x."""
    n_elements = n_elements // GROUP * GROUP
    offsets = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements

    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)

    # div
    div = tl.div_rn(x, 30.0)
    # tanh
    tanh_2 = tanh(div)
    # mul
    mul = tanh_2 * 30.0

    tl.store(out_ptr + offsets, mul, mask=mask)


def softcap(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    shape = x.shape
    out = torch.empty(shape, dtype=torch.float32, device=x.device)
    n_elements = out.numel()
    if out.numel():
        grid = (triton.cdiv(n_elements, BLOCK_SIZE),)
        softcap_kernel[grid](
            x,
            out,
            n_elements,
            BLOCK_SIZE=BLOCK_SIZE,
            GROUP=math.gcd(n_elements, 16),
            num_warps=NUM_WARPS,
        )
    return out
