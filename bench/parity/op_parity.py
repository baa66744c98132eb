"""Every op of lockstep_ops against the engine's, on data that shows an order of additions."""

import torch

import lockstep_ops
from bits import compare
from lockstep_ops.rotary import rotary_table

EPSILON = 1e-6


class Data:
    """Random tensors on the GPU, the same in every run."""

    def __init__(self, seed):
        self._generator = torch.Generator("cuda").manual_seed(seed)

    def normal(self, *shape):
        return torch.randn(shape, generator=self._generator, device="cuda")

    def wide(self, *shape):
        """Values over 24 binary orders of magnitude."""
        powers = torch.randint(-12, 13, shape, generator=self._generator, device="cuda")
        return self.normal(*shape) * torch.exp2(powers.float())

    def ids(self, count, below):
        return torch.randint(0, below, (count,), generator=self._generator, device="cuda")


def _linear(engine, data):
    for outputs, inputs, segments in ((4096, 4096, 1), (4096, 4096, 2), (1024, 12288, 1),
                                      (1024, 12288, 2), (1032, 12288, 8), (6144, 1024, 1)):
        # Sums cancel in every segment: what is left is the rounding of every step.
        weight = data.wide(outputs, inputs // 16).repeat(1, 16).bfloat16()
        half = data.wide(300, inputs // 16)
        x = torch.cat([half, -half] * 8, dim=1).bfloat16()
        x[1::2] = data.wide(150, inputs).bfloat16()
        for bias, output_f32 in ((None, False), (data.normal(outputs).bfloat16(), False),
                                 (None, True)):
            if output_f32 and segments > 1:
                continue
            expected = engine.linear(x, weight, bias, segments, output_f32)
            name = f"linear {outputs}x{inputs} S={segments}" + (" bias" if bias is not None else "")
            name += " fp32" if output_f32 else ""
            for schedule in lockstep_ops.LINEAR_SCHEDULES:
                y = lockstep_ops.linear(x, weight, bias, segments=segments, output_f32=output_f32,
                                        schedule=schedule)
                yield compare(f"{name}, tile {schedule[0]}x{schedule[1]}", y, expected)
        for rows in (1, 17, 65):
            y = lockstep_ops.linear(x[:rows], weight, segments=segments)
            yield compare(f"linear {outputs}x{inputs} S={segments}, {rows} rows", y,
                          engine.linear(x[:rows].contiguous(), weight, None, segments, False))


def _rms_norm(engine, data):
    for width in (128, 896, 1024, 4096):
        x, weight = data.wide(300, width).bfloat16(), data.normal(width).bfloat16()
        yield compare(f"RMSNorm of {width}", lockstep_ops.rms_norm(x, weight, EPSILON),
                      engine.rms_norm(x, weight, EPSILON))


def _rope_table(engine, _):
    for theta, head_dim in ((1e6, 128), (1e4, 64), (5e5, 128)):
        expected = torch.from_numpy(engine.rope_table(theta, head_dim, 8192))
        frequencies = lockstep_ops.inverse_frequencies(theta, head_dim)
        cos, sin = rotary_table(frequencies, 8192)
        table = torch.cat([torch.from_numpy(cos), torch.from_numpy(sin)], dim=1)
        yield compare(f"rotary table, theta {theta:g}, {head_dim} dims", table, expected)


def _rotated(x, cos, sin):
    """As the models do it: every operation rounded to bf16."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x * cos) + (turned * sin)


def _attention(engine, data):
    for q_heads, kv_heads, head_dim in ((32, 8, 128), (8, 2, 64)):
        heads = (q_heads, kv_heads, head_dim)
        norms = [(4 + data.normal(head_dim) / 2).bfloat16() for _ in range(2)]
        frequencies = lockstep_ops.inverse_frequencies(1e6, head_dim)
        cos, sin = lockstep_ops.rotary_tables(frequencies, 4096)
        table = torch.cat([torch.from_numpy(part) for part in rotary_table(frequencies, 4096)],
                          dim=1).cuda()
        for rows, split in ((1, 1024), (130, 1024), (1025, 1024), (2100, 1024), (700, 256)):
            qkv = data.normal(rows, q_heads + 2 * kv_heads, head_dim).bfloat16()
            q, k, v = qkv.split((q_heads, kv_heads, kv_heads), dim=1)
            q, k = (_rotated(lockstep_ops.rms_norm(part, norm, EPSILON), cos[:rows, None],
                             sin[:rows, None]) for part, norm in zip((q, k), norms))
            q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
            prepared = qkv.reshape(rows, -1).clone()
            expected = engine.attention(prepared, *norms, table, heads, split, EPSILON)
            name = f"{q_heads}/{kv_heads} heads of {head_dim}, {rows} rows, split {split}"
            yield compare(f"q norm and rotation, {name}",
                          q[0].transpose(0, 1).reshape(rows, -1),
                          prepared[:, :q_heads * head_dim])
            for tile in (16, 64):
                y = lockstep_ops.attention(q, k, v, split_kv_size=split, rows=tile)
                yield compare(f"attention, {name}, tile {tile}", y.reshape(rows, -1), expected)
            last = lockstep_ops.attention(q[:, :, -1:], k, v, split_kv_size=split)
            yield compare(f"attention, {name}, last row alone", last.reshape(1, -1),
                          expected[-1:])


def _swiglu(engine, _):
    gate = torch.arange(65536, dtype=torch.int32, device="cuda").to(torch.int16)
    gate = gate.view(torch.bfloat16).reshape(256, 256)
    for name, up in (("1", torch.ones_like(gate)),
                     ("every other number", gate.flip(0).roll(77, 1).contiguous())):
        yield compare(f"SwiGLU of all 65,536 gates, up = {name}",
                      torch.nn.functional.silu(gate) * up,
                      engine.swiglu(torch.cat([gate, up], dim=1)))


def _logprobs(engine, data):
    for vocabulary, scale in ((151936, 3), (32000, 30), (1000, 0.01)):
        logits, ids = data.normal(300, vocabulary) * scale, data.ids(300, vocabulary)
        expected = engine.logprobs(logits, ids, 0.8)
        actual = lockstep_ops.token_logprobs(logits, ids, temperature=0.8, entropy=True)
        for name, ours, theirs in zip(actual._fields, actual, expected):
            yield compare(f"logprobs over {vocabulary}: {name}", ours, theirs)


def compare_ops(engine):
    """Comparisons of all ops."""
    comparisons = []
    for op in (_rope_table, _rms_norm, _swiglu, _logprobs, _linear, _attention):
        comparisons += op(engine, Data(len(comparisons)))
    return comparisons
