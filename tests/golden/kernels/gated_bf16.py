"""gated: one kernel instead of one operator.

rule       pointwise_chain
captured   [4, 128, 512]
tuned on   not tuned: default configuration
"""

import math

import torch
import triton
import triton.language as tl

ROWS, BLOCK_SIZE, NUM_WARPS = 2, 512, 4


@triton.jit
def gated_kernel(
    gate_ptr,
    up_ptr,
    out_to_ptr,
    out_mul_ptr,
    n_rows,
    n_1,
    n_cols,
    gate_stride_0,
    gate_stride_1,
    gate_stride_2,
    up_stride_0,
    up_stride_1,
    up_stride_2,
    ROWS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
):
    """to, mul from gate, up."""
    n_cols = n_cols // GROUP * GROUP
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    cols = (tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE))[None, :]
    row_mask = row < n_rows
    col_mask = cols < n_cols
    mask = row_mask & col_mask
    i1 = row % n_1
    i0 = row // n_1

    gate_offsets = i0 * gate_stride_0 + i1 * gate_stride_1 + cols.to(tl.int64) * gate_stride_2
    gate = tl.load(gate_ptr + gate_offsets, mask=mask, other=0.0).to(tl.float32)
    up_offsets = i0 * up_stride_0 + i1 * up_stride_1 + cols.to(tl.int64) * up_stride_2
    up = tl.load(up_ptr + up_offsets, mask=mask, other=0.0).to(tl.float32)

    # silu
    silu = gate * tl.sigmoid(gate)
    # to_1
    to = silu.to(tl.bfloat16).to(tl.float32)
    # mul
    mul = to * up

    tl.store(out_to_ptr + row * n_cols + cols, to, mask=mask)
    tl.store(out_mul_ptr + row * n_cols + cols, mul, mask=mask)


def gated(gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    shape = torch.broadcast_shapes(gate.shape, up.shape)
    out_to = torch.empty(shape, dtype=torch.bfloat16, device=gate.device)
    out_mul = torch.empty(shape, dtype=torch.bfloat16, device=gate.device)
    n_cols = shape[-1]
    n_1 = shape[-2]
    n_rows = out_to.numel() // max(n_cols, 1)
    if out_to.numel():
        grid = (triton.cdiv(n_rows, ROWS), triton.cdiv(n_cols, BLOCK_SIZE))
        gated_kernel[grid](
            gate,
            up,
            out_to,
            out_mul,
            n_rows,
            n_1,
            n_cols,
            gate.stride(-3),
            gate.stride(-2),
            gate.stride(-1),
            up.stride(-3),
            up.stride(-2),
            up.stride(-1),
            ROWS=ROWS,
            BLOCK_SIZE=BLOCK_SIZE,
            GROUP=math.gcd(n_cols, 16),
            num_warps=NUM_WARPS,
        )
    return out_to, out_mul
