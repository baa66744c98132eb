"""Comparison of bits."""

import dataclasses

import torch


@dataclasses.dataclass
class Comparison:
    """How many values of one array differ in their bits, and by how much at most."""

    what: str
    compared: int
    differing: int
    largest: float


def compare(what, ours, theirs):
    """Two NaN are equal, whatever their payload."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        raise ValueError(f"{what}: {ours.dtype} {tuple(ours.shape)} and {theirs.dtype} "
                         f"{tuple(theirs.shape)}")
    integer = {2: torch.int16, 4: torch.int32}[ours.element_size()]
    ours, theirs = ours.contiguous(), theirs.contiguous()
    differs = (ours.view(integer) != theirs.view(integer)) & ~(ours.isnan() & theirs.isnan())
    gap = (ours.double() - theirs.double()).abs()[differs]
    largest = float(gap.nan_to_num(float("inf")).max()) if gap.numel() else 0.0
    return Comparison(what, ours.numel(), int(differs.sum()), largest)
