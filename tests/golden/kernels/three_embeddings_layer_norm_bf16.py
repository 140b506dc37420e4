"""three_embeddings_layer_norm: one kernel instead of one operator.

rule       embedding_layer_norm
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
def three_embeddings_layer_norm_kernel(
    words_ptr,
    types_ptr,
    positions_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    word_table_ptr,
    type_table_ptr,
    position_table_ptr,
    out_ptr,
    n_cols,
    word_table_stride_1,
    word_table_stride_table,
    word_table_size_table,
    type_table_stride_1,
    type_table_stride_table,
    type_table_size_table,
    position_table_stride_1,
    position_table_stride_table,
    position_table_size_table,
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
):
    """1 values from 8 tensors over rows of 768."""
    n_cols = n_cols // GROUP * GROUP
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK_SIZE)
    mask = cols < n_cols

    words = tl.load(words_ptr + row)
    types = tl.load(types_ptr + row)
    positions = tl.load(positions_ptr + row)
    norm_weight = tl.load(norm_weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    norm_bias = tl.load(norm_bias_ptr + cols, mask=mask, other=0.0).to(tl.float32)

    # embedding
    embedding_pointers = (
        word_table_ptr
        + cols.to(tl.int64) * word_table_stride_1
        + words.to(tl.int64) * word_table_stride_table
    )
    embedding = tl.load(
        embedding_pointers,
        mask=mask & (words >= 0) & (words < word_table_size_table),
        other=float("nan"),
    )
    embedding = embedding.to(tl.float32)
    # embedding_1
    embedding_2_pointers = (
        type_table_ptr
        + cols.to(tl.int64) * type_table_stride_1
        + types.to(tl.int64) * type_table_stride_table
    )
    embedding_2 = tl.load(
        embedding_2_pointers,
        mask=mask & (types >= 0) & (types < type_table_size_table),
        other=float("nan"),
    )
    embedding_2 = embedding_2.to(tl.float32)
    # add
    add = embedding + embedding_2
    # embedding_2
    embedding_3_pointers = (
        position_table_ptr
        + cols.to(tl.int64) * position_table_stride_1
        + positions.to(tl.int64) * position_table_stride_table
    )
    embedding_3 = tl.load(
        embedding_3_pointers,
        mask=mask & (positions >= 0) & (positions < position_table_size_table),
        other=float("nan"),
    )
    embedding_3 = embedding_3.to(tl.float32)
    # add_1
    add_2 = add + embedding_3
    # layer_norm
    mean = tl.sum(tl.where(mask, add_2, 0.0), axis=0) / n_cols
    centered = tl.where(mask, add_2 - mean, 0.0)
    centered = tl.where(mask, centered - tl.sum(centered, axis=0) / n_cols, 0.0)
    variance = tl.sum(centered * centered, axis=0) / n_cols
    layer_norm = centered * tl.rsqrt(variance + 1e-12) * norm_weight + norm_bias

    tl.store(out_ptr + row * n_cols + cols, layer_norm, mask=mask)


def three_embeddings_layer_norm(
    words: torch.Tensor,
    types: torch.Tensor,
    positions: torch.Tensor,
    norm_weight: torch.Tensor,
    norm_bias: torch.Tensor,
    word_table: torch.Tensor,
    type_table: torch.Tensor,
    position_table: torch.Tensor,
) -> torch.Tensor:
    words = words.contiguous()
    types = types.contiguous()
    positions = positions.contiguous()
    norm_weight = norm_weight.contiguous()
    norm_bias = norm_bias.contiguous()
    shape = torch.broadcast_shapes(
        words.shape,
        types.shape,
        positions.shape,
        norm_weight.shape,
        norm_bias.shape,
        word_table.shape[:-1],
        type_table.shape[:-1],
        position_table.shape[:-1],
    )
    out = torch.empty(shape, dtype=torch.bfloat16, device=words.device)
    n_cols = shape[-1]
    n_rows = out.numel() // max(n_cols, 1)
    if out.numel():
        grid = (n_rows,)
        three_embeddings_layer_norm_kernel[grid](
            words,
            types,
            positions,
            norm_weight,
            norm_bias,
            word_table,
            type_table,
            position_table,
            out,
            n_cols,
            word_table.stride(-2),
            word_table.stride(-1),
            word_table.shape[-1],
            type_table.stride(-2),
            type_table.stride(-1),
            type_table.shape[-1],
            position_table.stride(-2),
            position_table.stride(-1),
            position_table.shape[-1],
            BLOCK_SIZE=BLOCK_SIZE,
            GROUP=math.gcd(n_cols, 16),
            num_warps=NUM_WARPS,
        )
    return out
