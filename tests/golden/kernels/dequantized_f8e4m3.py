"""dequantized: one kernel instead of one operator.

rule       pointwise_chain
captured   [64, 768]
tuned on   not tuned: default configuration
"""

import math

import torch
import triton
import triton.language as tl

BLOCK_SIZE, NUM_WARPS = 1024, 4


@triton.jit
def from_float8_e4m3fn(code):
    """The value of a code; below 8 it is subnormal."""
    bits = code.to(tl.int32)
    size = bits & 127
    value = ((size << 20) + 1006632960).to(tl.float32, bitcast=True)
    subnormal = size.to(tl.float32) * 0.001953125
    value = tl.where(size < 8, subnormal, value)
    value = tl.where(size > 126, float("nan"), value)
    return tl.where(bits > 127, -1.0 * value, value)


@triton.jit
def dequantized_kernel(
    codes_ptr, scale_ptr, out_ptr, n_cols, BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr
):
    """mul from codes, scale."""
    n_cols = n_cols // GROUP * GROUP
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = cols < n_cols

    codes = tl.load(codes_ptr + row * n_cols + cols, mask=mask, other=0)
    scale = tl.load(scale_ptr + row).to(tl.float32)

    # to
    to = from_float8_e4m3fn(codes).to(tl.bfloat16).to(tl.float32)
    # mul
    mul = to * scale

    tl.store(out_ptr + row * n_cols + cols, mul, mask=mask)


def dequantized(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    codes = codes.contiguous()
    scale = scale.contiguous()
    shape = codes.shape
    out = torch.empty(shape, dtype=torch.bfloat16, device=codes.device)
    n_cols = shape[-1]
    n_rows = out.numel() // max(n_cols, 1)
    if out.numel():
        grid = (n_rows, triton.cdiv(n_cols, BLOCK_SIZE))
        dequantized_kernel[grid](
            codes.view(torch.uint8),
            scale,
            out,
            n_cols,
            BLOCK_SIZE=BLOCK_SIZE,
            GROUP=math.gcd(n_cols, 16),
            num_warps=NUM_WARPS,
        )
    return out
