"""The table of rotary embeddings, in double from + - * / alone, as the engine makes it.

A libm may change its last bit between versions, and a GPU's differs from a CPU's: sine and cosine
are series of our own. Everything runs once, on the host.
"""

import math

import numpy as np
import torch

_ROUNDER = float.fromhex("0x1.8p52")  # Adding it leaves the nearest integer, ties to even.

_SIN = tuple(float.fromhex(c) for c in (
    "0x1p0", "-0x1.5555555555555p-3", "0x1.1111111111111p-7", "-0x1.a01a01a01a01ap-13",
    "0x1.71de3a556c734p-19", "-0x1.ae64567f544e4p-26", "0x1.6124613a86d09p-33",
    "-0x1.ae7f3e733b81fp-41", "0x1.952c77030ad4ap-49"))
_COS = tuple(float.fromhex(c) for c in (
    "0x1p0", "-0x1p-1", "0x1.5555555555555p-5", "-0x1.6c16c16c16c17p-10",
    "0x1.a01a01a01a01ap-16", "-0x1.27e4fb7789f5cp-22", "0x1.1eed8eff8d898p-29",
    "-0x1.93974a8c07c9dp-37", "0x1.ae7f3e733b81fp-45"))

_TWO_OVER_PI = float.fromhex("0x1.45f306dc9c883p-1")
_HALF_PI = tuple(float.fromhex(c) for c in (
    "0x1.921fb544p+0", "0x1.0b4611a6p-34", "0x1.3198a2e037073p-69"))
_LOG2_E = float.fromhex("0x1.71547652b82fep+0")
_LN2_HIGH = float.fromhex("0x1.62e42fefp-1")
_LN2_LOW = float.fromhex("0x1.473de6af278edp-34")


def _horner(series, x):
    total = np.full_like(x, series[-1])
    for coefficient in reversed(series[:-1]):
        total = total * x + coefficient
    return total


def sin_cos(x):
    """Sine and cosine of float64 x, |x| < 2^20."""
    n = (x * _TWO_OVER_PI + _ROUNDER) - _ROUNDER
    r = ((x - n * _HALF_PI[0]) - n * _HALF_PI[1]) - n * _HALF_PI[2]
    square = r * r
    sine, cosine = r * _horner(_SIN, square), _horner(_COS, square)

    def of_quadrant(quadrant):
        value = np.where(quadrant & 1, cosine, sine)
        return np.where(quadrant & 2, -value, value)

    quadrant = n.astype(np.int64)
    return of_quadrant(quadrant), of_quadrant(quadrant + 1)


def exp(x):
    """exp of a Python float."""
    n = (x * _LOG2_E + _ROUNDER) - _ROUNDER
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    term = total = 1.0
    for i in range(1, 19):
        term = term * r / i
        total = total + term
    return total * math.ldexp(1.0, int(n))


def log(x):
    """Natural logarithm of a positive normal Python float."""
    bits = int(np.float64(x).view(np.int64))
    e = (bits - 0x3FE6A09E667F3BCD) >> 52
    m = float(np.int64(bits - (e << 52)).view(np.float64))
    s = (m - 1) / (m + 1)
    z = s * s
    total = 0.0
    for i in range(21, 0, -2):
        total = total * z + 1.0 / i
    return e * _LN2_HIGH + (2 * s * total + e * _LN2_LOW)


def inverse_frequencies(theta, head_dim):
    """RN(1 / RN(theta ^ RN(2 i / head_dim))): float32 [head_dim / 2], on the host."""
    log_theta = log(float(theta))
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    powers = np.array([np.float32(exp(float(e) * log_theta)) for e in exponents], dtype=np.float32)
    return np.float32(1) / powers


def rotary_table(frequencies, positions, attention_scaling=1.0):
    """Cosines and sines of angle = RN(position * frequency), each RN(RN(cos) * attention_scaling):
    two float32 [positions, head_dim / 2], on the host.
    """
    angles = np.arange(positions, dtype=np.float32)[:, None] * np.asarray(frequencies, np.float32)
    sine, cosine = sin_cos(angles.astype(np.float64))
    scaling = np.float32(attention_scaling)
    return cosine.astype(np.float32) * scaling, sine.astype(np.float32) * scaling


def rotary_tables(frequencies, positions, attention_scaling=1.0, device="cuda"):
    """As Hugging Face's modules pass them on: cos and sin, bf16 [positions, head_dim], the second
    half of each row a copy of the first. A row of q or k is then rotated to
    RNbf16(RNbf16(x * cos) + RNbf16(rot(x) * sin)), which the modules do themselves.
    """
    halves = rotary_table(frequencies, positions, attention_scaling)
    return tuple(torch.from_numpy(np.concatenate((half, half), axis=1)).to(device).bfloat16()
                 for half in halves)
