"""Linear layers."""

import torch
import triton
import triton.language as tl

from .forward_only import check_cuda, check_forward_only
from .tree import tree_sum

# Tile of rows, outputs and inputs, warps, stages. The order along K is that of the instruction,
# groups of 16 ascending into one sum, whatever the tile: a schedule decides no bit.
SCHEDULES = ((16, 64, 128, 4, 4), (64, 64, 64, 4, 4), (128, 128, 64, 8, 3))


@triton.jit
def _product_kernel(x, weight, product, rows, outputs, inputs, x_stride, length,
                    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    segment = tl.program_id(1)
    row_tiles = tl.cdiv(rows, BLOCK_M)
    row = (tl.program_id(0) % row_tiles * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    output = (tl.program_id(0) // row_tiles * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    begin = segment * length
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, length, BLOCK_K):
        at = k + tl.arange(0, BLOCK_K)
        a = tl.load(x + row[:, None] * x_stride + (begin + at)[None, :],
                    mask=(row < rows)[:, None] & (at < length)[None, :], other=0.0)
        b = tl.load(weight + output[None, :] * inputs + (begin + at)[:, None],
                    mask=(output < outputs)[None, :] & (at < length)[:, None], other=0.0)
        sums = tl.dot(a, b, sums)
    to = product + segment.to(tl.int64) * rows * outputs + row[:, None] * outputs + output[None, :]
    tl.store(to, sums.to(product.dtype.element_ty),
             mask=(row < rows)[:, None] & (output < outputs)[None, :])


def products(x, weight, segments, dtype, schedule=None):
    """[segments, rows, outputs]: for every segment of the inputs the tensor core's sum from zero,
    groups of 16 in ascending order, in fp32; then rounded to `dtype`.
    """
    rows, inputs = x.shape
    outputs = weight.shape[0]
    if inputs % (64 * segments) != 0:
        raise ValueError(f"{inputs} inputs are no multiple of 64 in each of {segments} segments")
    result = torch.empty(segments, rows, outputs, dtype=dtype, device=x.device)
    if rows == 0:
        return result
    if schedule is None:
        schedule = SCHEDULES[0 if rows <= 16 else 1 if rows <= 64 else 2]
    block_m, block_n, block_k, warps, stages = schedule
    grid = (triton.cdiv(rows, block_m) * triton.cdiv(outputs, block_n), segments)
    _product_kernel[grid](x, weight, result, rows, outputs, inputs, x.stride(0), inputs // segments,
                          BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, num_warps=warps,
                          num_stages=stages, enable_fp_fusion=False)
    return result


def linear(x, weight, bias=None, *, segments=1, output_f32=False, schedule=None):
    """y = RNbf16(RN(T(p) + bias)), p_s the product over segment s of the inputs.

    x: bf16 [..., inputs]; weight: bf16 [outputs, inputs]; bias: bf16 [outputs] or None. `segments`
    is a power of two; row-parallel layers (o_proj, down_proj) have the worker's
    `reduction_segments`, all others 1. `output_f32` leaves the sum in fp32: lm_head.
    """
    check_forward_only(x, weight, bias)
    check_cuda("x", x, torch.bfloat16)
    check_cuda("weight", weight, torch.bfloat16)
    flat = x.reshape(-1, x.shape[-1])
    flat = flat if flat.stride(-1) == 1 else flat.contiguous()
    plain = segments == 1 and bias is None
    rounded = plain and not output_f32
    y = products(flat, weight.contiguous(), segments,
                 torch.bfloat16 if rounded else torch.float32, schedule)
    y = y[0] if segments == 1 else tree_sum(y, dim=0)
    if bias is not None:
        y = y + bias.float()
    if not output_f32:
        y = y.to(torch.bfloat16)
    return y.reshape(*x.shape[:-1], weight.shape[0])
