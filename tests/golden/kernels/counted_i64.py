"""counted: one kernel instead of one operator.

rule       pointwise_chain
captured   [4, 100]
tuned on   not tuned: default configuration
"""

import math

import torch
import triton
import triton.language as tl

BLOCK_SIZE, NUM_WARPS = 1024, 4


@triton.jit
def counted_kernel(
    count_ptr,
    chosen_ptr,
    out_add_ptr,
    out_and_2_ptr,
    n_elements,
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
):
    """add, and_2 from count, chosen."""
    n_elements = n_elements // GROUP * GROUP
    offsets = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements

    count = tl.load(count_ptr + offsets, mask=mask, other=0)
    chosen = tl.load(chosen_ptr + offsets, mask=mask, other=0)

    # mul
    mul = count * 2
    # add
    add = mul + chosen.to(tl.int64)
    # gt
    gt = add > 3
    # and_1
    and_2 = gt & chosen

    tl.store(out_add_ptr + offsets, add, mask=mask)
    tl.store(out_and_2_ptr + offsets, and_2, mask=mask)


def counted(count: torch.Tensor, chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    count = count.contiguous()
    chosen = chosen.contiguous()
    shape = count.shape
    out_add = torch.empty(shape, dtype=torch.int64, device=count.device)
    out_and_2 = torch.empty(shape, dtype=torch.bool, device=count.device)
    n_elements = out_add.numel()
    if out_add.numel():
        grid = (triton.cdiv(n_elements, BLOCK_SIZE),)
        counted_kernel[grid](
            count,
            chosen,
            out_add,
            out_and_2,
            n_elements,
            BLOCK_SIZE=BLOCK_SIZE,
            GROUP=math.gcd(n_elements, 16),
            num_warps=NUM_WARPS,
        )
    return out_add, out_and_2
