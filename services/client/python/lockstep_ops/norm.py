"""RMSNorm."""

import numpy as np
import torch

from .forward_only import check_forward_only
from .tree import tree_sum


def rms_norm(x, weight, epsilon):
    """RNbf16(weight * RNbf16(x * r)), r = 1 / sqrt(T(x * x) * RN(1 / N) + epsilon).

    x: bf16 [..., N]; weight: bf16 [N], or fp32 with values of bf16; epsilon: rounded to fp32.
    Every operation is rounded to fp32; division and root are those of IEEE.
    """
    check_forward_only(x, weight)
    wide = x.float()
    inverse_width = float(np.float32(1) / np.float32(x.shape[-1]))
    mean = tree_sum(wide * wide) * inverse_width
    root = torch.sqrt(mean + float(np.float32(epsilon)))
    r = torch.ones_like(root) / root
    return (weight.float() * (wide * r[..., None]).to(x.dtype).float()).to(x.dtype)
