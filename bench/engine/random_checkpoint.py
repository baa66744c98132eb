#!/usr/bin/env python3
"""Writes a checkpoint of Qwen3-8B's shapes with random weights, to time loading one.

Usage: random_checkpoint.py DIRECTORY [--layers=36]

Shards of safetensors with an index and a config.json, as Hugging Face lays them out: 16.4 GB with
all layers. Values repeat every 64 MiB, which no step of loading can make use of.
"""

import argparse
import json
import pathlib
import struct

import numpy

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCABULARY = 4096, 32, 8, 128, 12288, 151936
LAYERS_PER_SHARD = 12
BLOCK_VALUES = 32 << 20


def layer_shapes(layer):
    """Name and shape of each tensor of a layer."""
    prefix = f"model.layers.{layer}."
    return {
        prefix + "input_layernorm.weight": [HIDDEN],
        prefix + "self_attn.q_proj.weight": [HEADS * HEAD_DIM, HIDDEN],
        prefix + "self_attn.k_proj.weight": [KV_HEADS * HEAD_DIM, HIDDEN],
        prefix + "self_attn.v_proj.weight": [KV_HEADS * HEAD_DIM, HIDDEN],
        prefix + "self_attn.q_norm.weight": [HEAD_DIM],
        prefix + "self_attn.k_norm.weight": [HEAD_DIM],
        prefix + "self_attn.o_proj.weight": [HIDDEN, HEADS * HEAD_DIM],
        prefix + "post_attention_layernorm.weight": [HIDDEN],
        prefix + "mlp.gate_proj.weight": [FFN, HIDDEN],
        prefix + "mlp.up_proj.weight": [FFN, HIDDEN],
        prefix + "mlp.down_proj.weight": [HIDDEN, FFN],
    }


def write_shard(path, shapes, values):
    """One file with these tensors, bf16."""
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * int(numpy.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        left = end // 2
        while left > 0:
            file.write(values[:min(left, len(values))].data)
            left -= min(left, len(values))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=36)
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    rng = numpy.random.default_rng(1)
    drawn = rng.standard_normal(BLOCK_VALUES, dtype=numpy.float32) * numpy.float32(0.02)
    values = (drawn.view(numpy.uint32) >> 16).astype(numpy.uint16)
    ends = {"model.embed_tokens.weight": [VOCABULARY, HIDDEN], "model.norm.weight": [HIDDEN],
            "lm_head.weight": [VOCABULARY, HIDDEN]}
    shards = [ends]
    for first in range(0, arguments.layers, LAYERS_PER_SHARD):
        shapes = {}
        for layer in range(first, min(first + LAYERS_PER_SHARD, arguments.layers)):
            shapes.update(layer_shapes(layer))
        shards.append(shapes)
    weight_map = {}
    for i, shapes in enumerate(shards, 1):
        name = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        write_shard(arguments.directory / name, shapes, values)
        weight_map.update(dict.fromkeys(shapes, name))
    (arguments.directory / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": weight_map}))
    (arguments.directory / "config.json").write_text(json.dumps({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu",
        "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": FFN,
        "num_hidden_layers": arguments.layers, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "max_position_embeddings": 40960,
        "rope_theta": 1000000, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16"}))


if __name__ == "__main__":
    main()
