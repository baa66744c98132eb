"""Constants of contract version 1 on the CUDA backend. Every one of them decides bits."""

CONTRACT_VERSION = 1
KV_BLOCK = 128        # Keys that share one update of the running maximum.
SPLIT_KV_SIZE = 1024  # Keys that are merged as a whole: the default of `split_kv_size`.

LOG2_E = float.fromhex("0x1.715476p+0")  # In fp32.
HIGHEST = float.fromhex("0x1.fffffep+127")  # The largest finite fp32.

# 2^f on [-1/2, 1/2] = 1 + f (C1 + f (C2 + ...)).
EXP2 = tuple(float.fromhex(c) for c in (
    "0x1.62e43p-1", "0x1.ebfbdcp-3", "0x1.c6aee8p-5", "0x1.3b2d4ep-7", "0x1.5f3e56p-10",
    "0x1.41fbb6p-13"))

# log(1 + f) = f - f^2 / 2 + f^3 (C3 + C4 f + ...) on [sqrt(1/2) - 1, sqrt(2) - 1].
LOG = tuple(float.fromhex(c) for c in (
    "0x1.555548p-2", "-0x1.000006p-2", "0x1.99a4b6p-3", "-0x1.555c4cp-3", "0x1.233762p-3",
    "-0x1.fc2234p-4", "0x1.e6f0fp-4", "-0x1.de3b3ap-4", "0x1.14558p-4"))
LN2_HIGH = float.fromhex("0x1.63p-1")
LN2_LOW = float.fromhex("-0x1.bd0106p-13")
SQRT_HALF_BITS = 0x3F3504F3
