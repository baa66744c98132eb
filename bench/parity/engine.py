"""The engine's side: its ops through ctypes, and its model in a process of its own."""

import ctypes
import dataclasses
import pathlib
import subprocess
import sys

import numpy as np
import torch

_FLOAT, _INT, _POINTER = ctypes.c_float, ctypes.c_int32, ctypes.c_void_p


def _call_type(name, **fields):
    return type(name, (ctypes.Structure,), {"_fields_": list(fields.items())})


_LinearCall = _call_type("LinearCall", x=_POINTER, weight=_POINTER, bias=_POINTER, y=_POINTER,
                         rows=_INT, outputs=_INT, inputs=_INT, segments=_INT, output_f32=_INT)
_RmsNormCall = _call_type("RmsNormCall", x=_POINTER, weight=_POINTER, y=_POINTER, rows=_INT,
                          width=_INT, epsilon=_FLOAT)
_SwiGluCall = _call_type("SwiGluCall", gate_up=_POINTER, y=_POINTER, rows=_INT, width=_INT)
_AttentionCall = _call_type("AttentionCall", qkv=_POINTER, q_norm=_POINTER, k_norm=_POINTER,
                            rope_table=_POINTER, y=_POINTER, rows=_INT, q_heads=_INT,
                            kv_heads=_INT, head_dim=_INT, split_kv_size=_INT, epsilon=_FLOAT)
_LogprobsCall = _call_type("LogprobsCall", logits=_POINTER, ids=_POINTER, raw=_POINTER,
                           scaled=_POINTER, entropy=_POINTER, rows=_INT, vocabulary=_INT,
                           temperature=_FLOAT)


def _address(tensor):
    return None if tensor is None else tensor.data_ptr()


class EngineOps:
    """Ops of kernels/cuda on PyTorch's tensors; engine_ops.h has their shapes."""

    def __init__(self, library):
        self._library = ctypes.CDLL(str(library))
        self._library.ParityRopeTable.argtypes = [ctypes.c_double, _INT, _INT, _POINTER]

    def _run(self, name, call):
        torch.cuda.synchronize()
        error = getattr(self._library, name)(ctypes.byref(call))
        if error != 0:
            raise RuntimeError(f"{name}: CUDA error {error}")

    def linear(self, x, weight, bias, segments, output_f32):
        dtype = torch.float32 if output_f32 else torch.bfloat16
        y = torch.empty(x.shape[0], weight.shape[0], dtype=dtype, device=x.device)
        self._run("ParityLinear", _LinearCall(
            _address(x), _address(weight), _address(bias), _address(y), x.shape[0],
            weight.shape[0], x.shape[1], segments, output_f32))
        return y

    def rms_norm(self, x, weight, epsilon):
        y = torch.empty_like(x)
        wide = weight.float()
        self._run("ParityRmsNorm", _RmsNormCall(_address(x), _address(wide), _address(y),
                                                x.shape[0], x.shape[1], epsilon))
        return y

    def swiglu(self, gate_up):
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        y = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
        self._run("ParitySwiGlu", _SwiGluCall(_address(gate_up), _address(y), rows, width))
        return y

    def attention(self, qkv, q_norm, k_norm, table, heads, split_kv_size, epsilon):
        """Norm, rotation and attention of one sequence; q in qkv becomes what attention reads."""
        q_heads, kv_heads, head_dim = heads
        y = torch.empty(qkv.shape[0], q_heads * head_dim, dtype=qkv.dtype, device=qkv.device)
        q_wide, k_wide = q_norm.float(), k_norm.float()
        self._run("ParityAttention", _AttentionCall(
            _address(qkv), _address(q_wide), _address(k_wide), _address(table), _address(y),
            qkv.shape[0], q_heads, kv_heads, head_dim, split_kv_size, epsilon))
        return y

    def logprobs(self, logits, ids, temperature):
        arrays = torch.empty(3, logits.shape[0], dtype=torch.float32, device=logits.device)
        host_ids = ids.to(device="cpu", dtype=torch.int32)
        self._run("ParityLogprobs", _LogprobsCall(
            _address(logits), _address(host_ids), _address(arrays[0]), _address(arrays[1]),
            _address(arrays[2]), logits.shape[0], logits.shape[1], temperature))
        return arrays

    def rope_table(self, theta, head_dim, positions):
        table = np.empty((positions, head_dim), dtype=np.float32)
        self._library.ParityRopeTable(theta, head_dim, positions, table.ctypes.data)
        return table


@dataclasses.dataclass
class EngineAnswer:
    """What the engine drew for a prompt; arrays are of the prompt's tokens from the second on, then
    of the new ones."""

    ids: np.ndarray  # Prompt and new tokens.
    raw: np.ndarray
    scaled: np.ndarray
    entropy: np.ndarray


def _read_answers(path, requests):
    data = np.fromfile(path, dtype="<i4")
    at, answers = 0, []
    for prompt, new_tokens in requests:
        ids = np.concatenate([np.asarray(prompt, np.int32), data[at:at + new_tokens]])
        at += new_tokens
        arrays = []
        for _ in range(3):
            arrays.append(data[at:at + len(ids) - 1].view(np.float32))
            at += len(ids) - 1
        answers.append(EngineAnswer(ids, *arrays))
    if at != len(data):
        raise RuntimeError(f"{path}: {len(data)} words, {at} expected")
    return answers


class EngineModel:
    """Runs parity_engine."""

    def __init__(self, binary, work):
        self._binary, self._work = binary, pathlib.Path(work)

    def run(self, model, segments, split_kv_size, requests):
        """The engine's own words about what it loaded, and its answers to [(prompt, new tokens)].
        """
        stem = self._work / f"{pathlib.Path(model).name}_s{segments}"
        words = [len(requests)]
        for prompt, new_tokens in requests:
            words += [len(prompt), new_tokens, *prompt]
        asked, answered = f"{stem}.requests", f"{stem}.answers"
        np.asarray(words, dtype="<i4").tofile(asked)
        done = subprocess.run(
            [self._binary, model, str(segments), str(split_kv_size),
             str(self._work / "certificates"), asked, answered],
            stdout=subprocess.PIPE, stderr=sys.stderr, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"parity_engine ended with {done.returncode}")
        facts = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
        return facts, _read_answers(answered, requests)
