"""Puts the canonical ops into a model of Hugging Face's transformers.

Nothing else of the model changes: residual additions, rotation, SwiGLU and all roundings to bf16
are its own, and parameters keep their names and storage.
"""

import dataclasses
import typing

import torch
from torch import nn

from .attention import attention
from .constants import SPLIT_KV_SIZE
from .linear import linear
from .norm import rms_norm
from .rotary import inverse_frequencies, rotary_tables

ATTENTION = "lockstep"
_ROW_PARALLEL = ("o_proj", "down_proj")
_LINEAR = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head", *_ROW_PARALLEL)


@dataclasses.dataclass
class AttentionOrder:
    """What a model's attention layers share."""

    split_kv_size: int
    starts: typing.Optional[torch.Tensor] = None  # Of this pass, when its sequences are packed.


class CanonicalLinear(nn.Module):
    """In the place of nn.Linear, on its parameters."""

    def __init__(self, original, segments, output_f32):
        super().__init__()
        self.weight, self.bias = original.weight, original.bias
        self.segments, self.output_f32 = segments, output_f32

    def forward(self, x):
        return linear(x, self.weight, self.bias, segments=self.segments, output_f32=self.output_f32)


class CanonicalRmsNorm(nn.Module):
    """In the place of a model's RMSNorm, on its parameter."""

    def __init__(self, original):
        super().__init__()
        self.weight, self.epsilon = original.weight, original.variance_epsilon

    def forward(self, x):
        return rms_norm(x, self.weight, self.epsilon)


def _sequence_starts(position_ids):
    """Where sequences begin that stand one after the other in one row, and the row's length; None
    when every row is one sequence, of consecutive positions."""
    steps = position_ids[:, 1:] - position_ids[:, :-1]
    if bool((steps == 1).all()):
        return None
    begins = position_ids[0] == 0
    if position_ids.shape[0] != 1 or not bool(begins[0] & ((steps[0] == 1) | begins[1:]).all()):
        raise ValueError("positions are neither consecutive nor those of packed sequences, each "
                         "from 0, in a batch of one row")
    ends = torch.tensor([position_ids.shape[1]], device=position_ids.device)
    return torch.cat((begins.nonzero()[:, 0], ends)).int()


class CanonicalRotary(nn.Module):
    """In the place of a model's rotary embedding: rows of the table. It sees the positions first,
    and tells attention where packed sequences begin.
    """

    def __init__(self, config, device, order):
        super().__init__()
        parameters = getattr(config, "rope_parameters", None) or {}
        # The second is where older versions of transformers keep it.
        for scaling in (parameters, getattr(config, "rope_scaling", None) or {}):
            kind = scaling.get("rope_type", scaling.get("type", "default"))
            if kind != "default":
                raise ValueError(f"rope_type {kind!r}: only 'default' is supported")
        theta = parameters.get("rope_theta") or config.rope_theta
        head_dim = getattr(config, "head_dim", None)
        head_dim = head_dim or config.hidden_size // config.num_attention_heads
        cos, sin = rotary_tables(inverse_frequencies(theta, head_dim),
                                 config.max_position_embeddings, device=device)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._order = order

    def forward(self, x, position_ids):
        self._order.starts = _sequence_starts(position_ids)
        return self.cos[position_ids].to(x.dtype), self.sin[position_ids].to(x.dtype)


def _attend(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **_):
    if dropout:
        raise ValueError("attention dropout draws numbers that the engine does not")
    if scaling is not None and abs(scaling - query.shape[-1] ** -0.5) > 1e-9:
        raise ValueError(f"scaling {scaling}: only 1 / sqrt(head_dim) is supported")
    if attention_mask is not None:
        raise ValueError("a mask of one's own: attention is causal; packed sequences are told by "
                         "their position_ids")
    order = module.lockstep_order
    return attention(query, key, value, starts=order.starts,
                     split_kv_size=order.split_kv_size), None


def _check_mask(*_, attention_mask=None, **__):
    """Padding may stand on the right only, where causal attention does not see it."""
    if attention_mask is not None and attention_mask.dim() == 2:
        if bool((attention_mask[:, 1:].int() > attention_mask[:, :-1].int()).any()):
            raise ValueError("padding on the left: the engine counts keys from position 0")


def _register():
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface
    AttentionInterface.register(ATTENTION, _attend)
    AttentionMaskInterface.register(ATTENTION, _check_mask)


def make_canonical(model, *, segments=1, split_kv_size=SPLIT_KV_SIZE):
    """Replaces linear, norm, rotary table, attention and lm_head of a causal model in place, and
    returns it; its logits are then fp32.

    model: Qwen3 or Qwen2 for causal language modelling, bf16, on a GPU, without sliding windows.
    segments, split_kv_size: the worker's `reduction_segments` and `split_kv_size`; `lockstep info`
    shows both.
    """
    config = model.config
    if getattr(config, "hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act {config.hidden_act!r}: only 'silu' is supported")
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
        raise ValueError("sliding windows are not supported")
    device = model.lm_head.weight.device
    order = AttentionOrder(split_kv_size)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                if type(child) is not nn.Linear or name not in _LINEAR:
                    raise ValueError(f"{name}: {type(child).__name__} is no layer of the model "
                                     "itself; merge adapters and undo patches first")
                setattr(parent, name, CanonicalLinear(
                    child, segments if name in _ROW_PARALLEL else 1, name == "lm_head"))
            elif type(child).__name__.endswith("RMSNorm"):
                setattr(parent, name, CanonicalRmsNorm(child))
            elif type(child).__name__.endswith("RotaryEmbedding"):
                setattr(parent, name, CanonicalRotary(config, device, order))
            elif type(child).__name__.endswith("Attention"):
                child.lockstep_order = order
    _register()
    model.set_attn_implementation(ATTENTION)
    if config._attn_implementation != ATTENTION:
        raise ValueError(f"{type(model).__name__} keeps its own attention")
    return model
