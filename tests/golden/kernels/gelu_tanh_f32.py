"""gelu_tanh: one kernel instead of one operator.

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
def gelu_tanh_kernel(x_ptr, out_ptr, n_elements, BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr):
    """mul_4 from x."""
    n_elements = n_elements // GROUP * GROUP
    offsets = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements

    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)

    # mul
    mul = x * 0.5
    # pow_1
    pow = x * x * x
    # mul_1
    mul_2 = pow * 0.044715
    # add
    add = x + mul_2
    # mul_2
    mul_3 = add * 0.7978845608028654
    # tanh
    tanh_2 = tanh(mul_3)
    # add_1
    add_2 = tanh_2 + 1.0
    # mul_3
    mul_4 = mul * add_2

    tl.store(out_ptr + offsets, mul_4, mask=mask)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    shape = x.shape
    out = torch.empty(shape, dtype=torch.float32, device=x.device)
    n_elements = out.numel()
    if out.numel():
        grid = (triton.cdiv(n_elements, BLOCK_SIZE),)
        gelu_tanh_kernel[grid](
            x,
            out,
            n_elements,
            BLOCK_SIZE=BLOCK_SIZE,
            GROUP=math.gcd(n_elements, 16),
            num_warps=NUM_WARPS,
        )
    return out
