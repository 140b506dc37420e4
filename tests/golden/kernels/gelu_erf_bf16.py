"""gelu_erf: one kernel instead of one operator.

rule       written_activation
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
def gelu_erf_kernel(x_ptr, out_ptr, n_elements, BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr):
    """mul_3 from x."""
    n_elements = n_elements // GROUP * GROUP
    offsets = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements

    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)

    # mul
    mul = x * 0.5
    # mul_1
    mul_2 = x * 0.7071067811865476
    # erf
    erf_2 = erf(mul_2)
    # add
    add = erf_2 + 1.0
    # mul_2
    mul_3 = mul * add

    tl.store(out_ptr + offsets, mul_3, mask=mask)


def gelu_erf(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    shape = x.shape
    out = torch.empty(shape, dtype=torch.bfloat16, device=x.device)
    n_elements = out.numel()
    if out.numel():
        grid = (triton.cdiv(n_elements, BLOCK_SIZE),)
        gelu_erf_kernel[grid](
            x,
            out,
            n_elements,
            BLOCK_SIZE=BLOCK_SIZE,
            GROUP=math.gcd(n_elements, 16),
            num_warps=NUM_WARPS,
        )
    return out
