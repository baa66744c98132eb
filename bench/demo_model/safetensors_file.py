"""Reads and writes safetensors: a u64 header length, a JSON header, raw little-endian data."""

import json
import struct

import numpy as np
import torch

# The stored name of each type, and a type of the same width that numpy knows.
_STORED = {torch.float32: ("F32", torch.float32), torch.bfloat16: ("BF16", torch.int16)}
_LOADED = {"F32": ("<f4", torch.float32), "BF16": ("<i2", torch.bfloat16)}


def save(path, tensors):
    """Writes `tensors` (name -> fp32 or bf16 tensor) in the order of their names."""
    header = {"__metadata__": {"format": "pt"}}
    chunks = []
    offset = 0
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        stored_name, bits_type = _STORED[tensor.dtype]
        data = tensor.view(bits_type).numpy().tobytes()
        header[name] = {
            "dtype": stored_name,
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + len(data)],
        }
        chunks.append(data)
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(chunks))


def load(path):
    """Returns name -> tensor, each in its stored type."""
    with open(path, "rb") as file:
        content = file.read()
    header_bytes = struct.unpack_from("<Q", content)[0]
    header = json.loads(content[8 : 8 + header_bytes])
    data = content[8 + header_bytes :]
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        numpy_type, torch_type = _LOADED[entry["dtype"]]
        begin, end = entry["data_offsets"]
        bits = torch.from_numpy(np.frombuffer(data[begin:end], dtype=numpy_type).copy())
        tensors[name] = bits.view(torch_type).reshape(entry["shape"])
    return tensors
