"""Qwen3 in plain PyTorch: small enough to read, exact enough to be the reference.

Parameter names are those of a Hugging Face checkpoint, so a state dict is a checkpoint and the
other way round. The graph runs in the precision of its parameters (fp32, fp64, or bf16 under
autocast); nothing in it falls back to a narrower type, so an fp64 run is an fp64 reference.
"""

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass(frozen=True)
class Qwen3Config:
    """The fields of config.json that decide the computation."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tie_word_embeddings: bool
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6

    @classmethod
    def from_json(cls, fields):
        """Takes config.json as a dict and ignores what does not decide the computation."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: fields[name] for name in names if name in fields})


def rope_tables(config, positions, dtype):
    """Returns cos and sin of shape [positions, head_dim].

    Angles are fp32 products in Hugging Face's order of operations whatever `dtype` is, because
    they are part of the model's definition; only cos and sin are evaluated in `dtype`.
    """
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    inverse_frequency = (1.0 / (config.rope_theta**exponent)).to(positions.device)
    angles = positions.float()[:, None] * inverse_frequency[None, :]
    angles = torch.cat((angles, angles), dim=-1).to(dtype)
    return angles.cos(), angles.sin()


def apply_rope(x, cos, sin):
    """Rotates x [batch, heads, tokens, head_dim] by the tables' angles."""
    first, second = x.chunk(2, dim=-1)
    rotated = torch.cat((-second, first), dim=-1)
    return x * cos.to(x.dtype) + rotated * sin.to(x.dtype)


def causal_attention(q, k, v):
    """Softmax attention over [batch, heads, tokens, head_dim]; token t sees tokens 0..t."""
    if q.is_cuda:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    tokens = q.shape[-2]
    scores = torch.matmul(q, k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    future = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1)
    return torch.matmul(scores.masked_fill(future, float("-inf")).softmax(dim=-1), v)


class RmsNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        # At least fp32 inside, as in Hugging Face's module, but never narrower than the input.
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        variance = wide.pow(2).mean(-1, keepdim=True)
        return self.weight.to(x.dtype) * (wide * torch.rsqrt(variance + self.eps)).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.head_dim = config.head_dim
        self.group = config.num_attention_heads // config.num_key_value_heads
        query_size = config.num_attention_heads * config.head_dim
        key_size = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, key_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, key_size, bias=False)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=False)
        self.q_norm = RmsNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RmsNorm(config.head_dim, config.rms_norm_eps)

    def forward(self, x, cos, sin):
        batch, tokens, _ = x.shape
        heads = (batch, tokens, -1, self.head_dim)
        q = apply_rope(self.q_norm(self.q_proj(x).view(heads)).transpose(1, 2), cos, sin)
        k = apply_rope(self.k_norm(self.k_proj(x).view(heads)).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(heads).transpose(1, 2)
        k = k.repeat_interleave(self.group, dim=1)
        v = v.repeat_interleave(self.group, dim=1)
        mixed = causal_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, -1)
        return self.o_proj(mixed)


class Mlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = Mlp(config)
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Qwen3Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, ids):
        x = self.embed_tokens(ids)
        positions = torch.arange(ids.shape[1], device=ids.device)
        cos, sin = rope_tables(self.config, positions, x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)


class Qwen3ForCausalLM(nn.Module):
    """Maps ids [batch, tokens] to next-token logits [batch, tokens, vocab_size]."""

    def __init__(self, config):
        super().__init__()
        self.model = Qwen3Model(config)
        self.lm_head = None
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, ids):
        head = self.model.embed_tokens if self.lm_head is None else self.lm_head
        return F.linear(self.model(ids), head.weight)
