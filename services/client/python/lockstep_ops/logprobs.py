"""Log-softmax, and what follows from it."""

import collections

import torch
import triton
import triton.language as tl

from .constants import (EXP2, HIGHEST, LN2_HIGH, LN2_LOW, LOG, LOG2_E, SQRT_HALF_BITS)
from .forward_only import check_forward_only
from .tree import tree_sum

# raw, scaled, entropy: fp32 [rows].
TokenLogprobs = collections.namedtuple("TokenLogprobs", ("raw", "scaled", "entropy"))

_ROWS_AT_ONCE = 256  # Exponentials of so many rows are held at once.

_LOG2_E = tl.constexpr(LOG2_E)
_ROUNDER = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding it leaves the nearest integer.
_C1, _C2, _C3, _C4, _C5, _C6 = (tl.constexpr(c) for c in EXP2)


@triton.jit
def _exp_below_max_kernel(logits, maxima, exponentials, vocabulary, BLOCK: tl.constexpr):
    """exponentials = exp(logits - max), by the contract's polynomial with explicit FMA."""
    row = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = ids < vocabulary
    z = tl.load(logits + row * vocabulary + ids, mask=exists, other=float("-inf"))
    x = (z - tl.load(maxima + row)) * _LOG2_E
    underflow = x < -126.0
    x = tl.where(underflow, -126.0, x)
    rounded = x + _ROUNDER
    f = x - (rounded - _ROUNDER)
    p = tl.fma(tl.full((BLOCK,), _C6, tl.float32), f, tl.full((BLOCK,), _C5, tl.float32))
    p = tl.fma(p, f, tl.full((BLOCK,), _C4, tl.float32))
    p = tl.fma(p, f, tl.full((BLOCK,), _C3, tl.float32))
    p = tl.fma(p, f, tl.full((BLOCK,), _C2, tl.float32))
    p = tl.fma(p, f, tl.full((BLOCK,), _C1, tl.float32))
    p = tl.fma(p, f, tl.full((BLOCK,), 1.0, tl.float32))
    # The rounder's own bits leave by the shift.
    power = ((rounded.to(tl.int32, bitcast=True) << 23) + (127 << 23)).to(tl.float32, bitcast=True)
    tl.store(exponentials + row * vocabulary + ids, tl.where(underflow, 0.0, p * power),
             mask=exists)


def exp_below_max(logits, maxima):
    """exp(RN(logits - max)): exp2 of RN(d * RN(log2 e)), 0 below -126. fp32 [rows, vocabulary]."""
    exponentials = torch.empty_like(logits)
    block = 4096
    grid = (logits.shape[0], triton.cdiv(logits.shape[1], block))
    _exp_below_max_kernel[grid](logits, maxima, exponentials, logits.shape[1], BLOCK=block,
                                num_warps=8, enable_fp_fusion=False)
    return exponentials


def log(x):
    """Natural logarithm of positive normal fp32; products and sums round one by one."""
    bits = x.view(torch.int32)
    exponent = (bits - SQRT_HALF_BITS) >> 23
    f = (bits - (exponent << 23)).view(torch.float32) - 1.0
    e = exponent.float()
    z = f * f
    p = torch.full_like(f, LOG[-1])
    for coefficient in reversed(LOG[:-1]):
        p = p * f
        p = p + coefficient
    y = f * z * p
    y = y + e * LN2_LOW
    y = y - z * 0.5
    y = f + y
    return y + e * LN2_HIGH


def _scaled(logits, temperature):
    """RN(z / T); overflow becomes the largest finite number of its sign, a zero positive."""
    if temperature == 1:
        return logits + 0.0
    divisor = torch.full((), temperature, dtype=torch.float32, device=logits.device)
    return (logits / divisor + 0.0).clamp(-HIGHEST, HIGHEST)


def _log_softmax_of(logits, ids):
    """Logprobs of `ids`, the exponentials, their sums and the rows' maxima."""
    maxima = logits.amax(dim=-1) + 0.0
    exponentials = exp_below_max(logits, maxima)
    sums = tree_sum(exponentials)
    log_sums = log(sums)
    chosen = logits.gather(1, ids[:, None])[:, 0]
    logprobs = ((chosen - maxima) - log_sums).clamp(min=-HIGHEST)
    return logprobs, exponentials, sums, log_sums, maxima


def _of_rows(logits, ids, temperature, entropy):
    raw, exponentials, sums, log_sums, maxima = _log_softmax_of(logits, ids)
    scaled = raw
    if temperature != 1:
        scaled = _log_softmax_of(_scaled(logits, temperature), ids)[0]
    if not entropy:
        return raw, scaled, None
    weighted = torch.where(exponentials > 0, exponentials * (logits - maxima[:, None]), 0.0)
    return raw, scaled, log_sums - tree_sum(weighted) / sums


def token_logprobs(logits, ids, *, temperature=1.0, entropy=False):
    """Log-probabilities of `ids`, raw and of logits / temperature, and the raw rows' entropy.

    logits: fp32 [rows, vocabulary], finite; ids: int64 [rows]. M = max, S = T(exp(z - M)) by id,
    logprob = RN(RN(z - M) - log S), at least the lowest finite fp32; entropy = RN(log S - RN(T(e *
    (z - M)) / S)). A temperature of 0 counts as 1.
    """
    check_forward_only(logits)
    if logits.dtype != torch.float32 or logits.dim() != 2:
        raise ValueError(f"logits are {logits.dtype} {tuple(logits.shape)}, fp32 [rows, vocabulary]"
                         " is needed")
    temperature = temperature or 1.0
    parts = [_of_rows(logits[i:i + _ROWS_AT_ONCE].contiguous(), ids[i:i + _ROWS_AT_ONCE],
                      temperature, entropy)
             for i in range(0, logits.shape[0], _ROWS_AT_ONCE)]
    raw, scaled, entropies = zip(*parts)
    return TokenLogprobs(torch.cat(raw), torch.cat(scaled),
                         torch.cat(entropies) if entropy else None)
