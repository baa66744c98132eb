"""Causal attention."""

import math

import numpy as np
import torch
import triton
import triton.language as tl

from .constants import KV_BLOCK, SPLIT_KV_SIZE
from .forward_only import check_cuda, check_forward_only


def attention_scale(head_dim):
    """log2(e) / sqrt(head_dim), rounded once from double to fp32."""
    return float(np.float32(1.4426950408889634074 / math.sqrt(head_dim)))


@triton.jit
def _exp2(x):
    return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32,
                                     is_pure=True, pack=1)


@triton.jit
def _rescale(old_max, new_max, scale):
    # Exactly 1 where the maximum did not move, also from minus infinity.
    return tl.where(old_max == new_max, 1.0, _exp2(old_max * scale - new_max * scale))


@triton.jit
def _attention_kernel(q, k, v, y, starts, scale, q_count, kv_count, group,
                      q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
                      y_batch, y_row, PACKED: tl.constexpr, SPLIT: tl.constexpr,
                      BLOCK: tl.constexpr, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr):
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    if PACKED:
        # Sequence `batch` of the one row that there is.
        begin = tl.load(starts + batch).to(tl.int64)
        q_count = (tl.load(starts + batch + 1) - begin).to(tl.int32)
        kv_count = q_count
        q += begin * q_row
        k += begin * k_row
        v += begin * v_row
        y += begin * y_row
        batch = batch * 0
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    dim = tl.arange(0, HEAD_DIM)
    row_exists = (row < q_count)[:, None]
    position = row + (kv_count - q_count)
    end = tl.minimum(tl.program_id(0) * ROWS + ROWS, q_count) + (kv_count - q_count)
    # The grid is for the longest of packed sequences.
    end = tl.where(tl.program_id(0) * ROWS < q_count, end, 0)
    query = tl.load(q + batch * q_batch + head * q_head + row[:, None].to(tl.int64) * q_row +
                    dim[None, :], mask=row_exists, other=0.0)
    keys = k + batch * k_batch + (head // group) * k_head
    values = v + batch * v_batch + (head // group) * v_head
    ones = tl.full((BLOCK, 16), 1.0, dtype=tl.bfloat16)

    merged_max = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    merged_weight = tl.zeros((ROWS, 16), dtype=tl.float32)
    merged = tl.zeros((ROWS, HEAD_DIM), dtype=tl.float32)
    for split in range(0, end, SPLIT):
        row_max = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
        weight = tl.zeros((ROWS, 16), dtype=tl.float32)  # 16 equal columns: P times ones.
        sums = tl.zeros((ROWS, HEAD_DIM), dtype=tl.float32)
        for block in range(split, tl.minimum(split + SPLIT, end), BLOCK):
            key = block + tl.arange(0, BLOCK)
            at = key.to(tl.int64)
            key_tile = tl.load(keys + at[None, :] * k_row + dim[:, None],
                               mask=(key < kv_count)[None, :], other=0.0)
            score = tl.dot(query, key_tile)
            score = tl.where(key[None, :] <= position[:, None], score, float("-inf"))
            new_max = tl.maximum(row_max, tl.max(score, axis=1))
            factor = _rescale(row_max, new_max, scale)[:, None]
            scaled_max = tl.where(new_max == float("-inf"), 0.0, new_max * scale)
            probability = _exp2(tl.fma(score, tl.full((ROWS, BLOCK), 1.0, tl.float32) * scale,
                                       tl.broadcast_to(-scaled_max[:, None], (ROWS, BLOCK))))
            probability = probability.to(tl.bfloat16)
            value_tile = tl.load(values + at[:, None] * v_row + dim[None, :],
                                 mask=(key < kv_count)[:, None], other=0.0)
            weight = tl.dot(probability, ones, weight * factor)
            sums = tl.dot(probability, value_tile, sums * factor)
            row_max = new_max
        # The first split is a copy. Of a later one that a row does not see nothing is added, since
        # its factor is 0 and that of what was merged 1.
        first = split == 0
        new_max = tl.where(first, row_max, tl.maximum(merged_max, row_max))
        old_factor = _rescale(merged_max, new_max, scale)[:, None]
        factor = _rescale(row_max, new_max, scale)[:, None]
        merged_weight = tl.where(first, weight, tl.fma(
            weight, tl.broadcast_to(factor, (ROWS, 16)), merged_weight * old_factor))
        merged = tl.where(first, sums, tl.fma(
            sums, tl.broadcast_to(factor, (ROWS, HEAD_DIM)), merged * old_factor))
        merged_max = new_max
    total = tl.max(merged_weight, axis=1)
    # A zero is positive.
    result = tl.div_rn(merged, tl.broadcast_to(total[:, None], (ROWS, HEAD_DIM))) + 0.0
    tl.store(y + batch * y_batch + row[:, None].to(tl.int64) * y_row + head * HEAD_DIM +
             dim[None, :], result.to(tl.bfloat16), mask=row_exists)


def attention(q, k, v, *, starts=None, split_kv_size=SPLIT_KV_SIZE, kv_block=KV_BLOCK, rows=None):
    """Causal attention; the last query is at the last key's position, the first key at position 0.

    q: bf16 [batch, q_heads, q_count, head_dim], after norm and rotation; k, v: bf16 [batch,
    kv_heads, kv_count, head_dim], kv_count >= q_count; head_dim 64 or 128. Returns bf16 [batch,
    q_count, q_heads, head_dim]. `starts`, for a batch of one row that holds several sequences one
    after the other: int32 [sequences + 1] on the GPU, where each begins, and the row's length.
    `kv_block` and `split_kv_size` are part of the order; `rows`, the queries of a tile, 16 or 64,
    is not.
    """
    check_forward_only(q, k, v)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_cuda(name, tensor, torch.bfloat16)
        if tensor.stride(-1) != 1:
            raise ValueError(f"{name} has elements of a head apart")
    batch, q_heads, q_count, head_dim = q.shape
    kv_heads, kv_count = k.shape[1], k.shape[2]
    if head_dim not in (64, 128) or q_heads % kv_heads != 0 or kv_count < q_count:
        raise ValueError(f"q {tuple(q.shape)} does not go with k {tuple(k.shape)}")
    if split_kv_size % kv_block != 0:
        raise ValueError(f"split_kv_size {split_kv_size} is no multiple of {kv_block}")
    packed = starts is not None
    if packed and (batch != 1 or kv_count != q_count):
        raise ValueError("packed sequences are one row, without a cache")
    y = torch.empty(batch, q_count, q_heads, head_dim, dtype=q.dtype, device=q.device)
    rows = rows or (16 if q_count <= 16 else 64)
    grid = (triton.cdiv(q_count, rows), q_heads, starts.numel() - 1 if packed else batch)
    _attention_kernel[grid](
        q, k, v, y, starts if packed else q, attention_scale(head_dim), q_count, kv_count,
        q_heads // kv_heads,
        q.stride(0), q.stride(1), q.stride(2), k.stride(0), k.stride(1), k.stride(2),
        v.stride(0), v.stride(1), v.stride(2), y.stride(0), y.stride(1), PACKED=packed,
        SPLIT=split_kv_size, BLOCK=kv_block, ROWS=rows, HEAD_DIM=head_dim, num_warps=4,
        num_stages=2, enable_fp_fusion=False)
    return y
