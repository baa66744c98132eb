"""What all ops share."""

import torch


def check_forward_only(*tensors):
    """The ops have no backward pass: asking for one is an error, not a wrong gradient."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        raise RuntimeError("lockstep_ops are forward only: call them under torch.no_grad()")


def check_cuda(name, tensor, dtype):
    if not tensor.is_cuda or tensor.dtype != dtype:
        raise ValueError(f"{name} is {tensor.dtype} on {tensor.device}, {dtype} on a GPU is needed")
