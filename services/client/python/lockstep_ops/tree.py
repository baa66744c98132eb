"""T, the one tree for every sum over a row."""

import torch


def tree_sum(values, dim=-1):
    """T(values) along `dim`, which disappears: zero-padded to a power of two, then neighbours are
    added until one is left, each sum rounded. values: fp32 of any shape, at least one along `dim`.
    """
    values = values.movedim(dim, -1)
    length = 1 << (values.shape[-1] - 1).bit_length()
    if length != values.shape[-1]:
        values = torch.nn.functional.pad(values, (0, length - values.shape[-1]))
    while values.shape[-1] > 1:
        values = values[..., 0::2] + values[..., 1::2]
    return values[..., 0]
