"""quantized: one kernel instead of one operator.

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
def to_float8_e5m2(x):
    """The code of the nearest value, ties to even; infinity past the largest."""
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    capped = tl.minimum(size, 1199570944)
    even = (capped >> 21) & 1
    code = (capped - 939524096 + 1048575 + even) >> 21
    subnormal = (tl.abs(x) + 128.0).to(tl.int32, bitcast=True) - 1124073472
    code = tl.minimum(tl.where(size < 947912704, subnormal, code), 124)
    code = tl.where(size > 0x7F800000, 127, code)
    return (code | ((bits >> 24) & 128)).to(tl.uint8)


@triton.jit
def quantized_kernel(
    x_ptr, out_div_ptr, out_to_part_ptr, n_cols, BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr
):
    """div, to_part from x over rows of 768."""
    n_cols = n_cols // GROUP * GROUP
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK_SIZE)
    mask = cols < n_cols

    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)

    # abs_1
    abs = tl.abs(x)
    # amax
    amax_part = tl.max(tl.where(mask, abs, float("-inf")), axis=0)
    amax_part_3 = tl.where(abs != abs, 1.0, 0.0)
    amax_part_4 = tl.max(tl.where(mask, amax_part_3, float("-inf")), axis=0)
    amax = tl.where(amax_part_4 > 0.0, float("nan"), amax_part)
    # clamp
    clamp = tl.where(amax < 1e-06, 1e-06, amax)
    # div
    div = tl.div_rn(clamp, 57344.0)
    # div_1
    div_2 = tl.div_rn(x, div)
    # to
    to_part = to_float8_e5m2(div_2)

    tl.store(out_to_part_ptr + row * n_cols + cols, to_part, mask=mask)
    tl.store(out_div_ptr + row, div)


def quantized(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.contiguous()
    shape = x.shape
    out_div = torch.empty((shape[-2], 1), dtype=torch.bfloat16, device=x.device)
    out_to_part = torch.empty(shape, dtype=torch.float8_e5m2, device=x.device)
    n_cols = shape[-1]
    n_rows = shape[-2]
    if n_rows:
        grid = (n_rows,)
        quantized_kernel[grid](
            x,
            out_div,
            out_to_part.view(torch.uint8),
            n_cols,
            BLOCK_SIZE=BLOCK_SIZE,
            GROUP=math.gcd(n_cols, 16),
            num_warps=NUM_WARPS,
        )
    return out_div, out_to_part
