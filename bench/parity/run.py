#!/usr/bin/env python3
"""Compares the engine with Hugging Face's transformers, on the host that has the GPU.

Usage: run.py OUT.json [--work=DIRECTORY] [--models=qwen3-small-peaked,…]

1. Every op of lockstep_ops against the engine's op, bit by bit.
2. Random checkpoints: the engine's logprobs of prompts and of what it draws against the same model
   in PyTorch with the canonical ops, bit by bit, with one and two reduction segments: prompts and
   answers in one pass, in a padded batch and packed, and answers token by token with a cache.
3. The engine's error against the model in fp32, beside that of the stock model in bf16.
4. Planted differences, each of which must be seen.
5. What the ops cannot give the engine's bits for, each of which must be refused.

The exit status is 0 when no bit differs, the error is at most 1.1 of the stock model's, every
planted difference was seen and every refusal came. Needs torch, triton, transformers; the rest is
in the bundle.
"""

import argparse
import concurrent.futures
import datetime
import pathlib
import platform
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
BUNDLED = (HERE.parent / "bin" / "parity_engine").exists()
ROOT = HERE.parent if BUNDLED else HERE.parents[1]
# The engine's program and library.
BINARIES = ROOT / ("bin" if BUNDLED else "build/cuda/bench/parity")
if not BUNDLED:
    sys.path.insert(0, str(ROOT / "services/client/python"))
sys.path.append(str(HERE.parent))

import torch  # noqa: E402
import transformers  # noqa: E402
import triton  # noqa: E402

import checkpoint  # noqa: E402
import model_parity  # noqa: E402
from engine import EngineModel, EngineOps  # noqa: E402
from gpu_host import GPU_FIELDS, commit_of, query, write_by_line  # noqa: E402
from op_parity import compare_ops  # noqa: E402
from refusals import refusals  # noqa: E402

ERROR_BAR = 1.1


def context(out, arguments):
    return {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "gpu": query(GPU_FIELDS), "host": platform.platform(), "commit": commit_of(ROOT),
            "command": " ".join(["run.py", out.name, *arguments]),
            "versions": {"python": platform.python_version(), "torch": torch.__version__,
                         "cuda": torch.version.cuda, "triton": triton.__version__,
                         "transformers": transformers.__version__}}


def summary(comparisons):
    return (f"{sum(c['compared'] for c in comparisons):>12} values, "
            f"{sum(c['differing'] for c in comparisons)} differ")


def print_table(record):
    """What the record says, in short; true when all of it is as it must be."""
    fine = True
    print("ops:", summary(record["ops"]))
    for c in record["ops"]:
        if c["differing"]:
            fine = False
            print(f"  {c['what']}: {c['differing']} of {c['compared']}, up to {c['largest']:g}")
    for model in {c["model"]: None for c in record["bits"]}:
        rows = [c for c in record["bits"] if c["model"] == model]
        for segments in (1, 2):
            for path in {c["path"]: None for c in rows}:
                of_path = [c for c in rows if c["path"] == path and c["segments"] == segments]
                print(f"{model}, S = {segments}, {path}:", summary(of_path))
                fine &= bool(of_path) and not any(c["differing"] for c in of_path)
    for e in record["errors"]:
        ratio = max(e["ratio_rms"], e["ratio_mean"])
        fine &= ratio <= ERROR_BAR
        print(f"{e['model']}, S = {e['segments']}: error against fp32, rms {e['engine_rms']:.5f}, "
              f"stock bf16 {e['stock_rms']:.5f}: {e['ratio_rms']:.3f}; mean "
              f"{e['ratio_mean']:.3f}; bar {ERROR_BAR}")
    for p in record["passes"]:
        print(f"{p['model']}, a pass over {p['tokens']} tokens takes {p['ratio']:.2f} times as "
              "long as stock")
    for p in record["planted"]:
        fine &= p["differing"] > 0
        print(f"{p['model']}, planted {p['what']}: {p['differing']} of {p['compared']} differ")
    fine &= bool(record["refused"])
    for r in record["refused"]:
        fine &= r["refused"] is not None
        print(f"{r['what']}: {'refused' if r['refused'] else 'TAKEN'}")
    return fine


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path)
    parser.add_argument("--models", default=",".join(checkpoint.MODELS))
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = flags.work or pathlib.Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        engine = EngineModel(BINARIES / "parity_engine", work)
        record = {"context": context(flags.out, sys.argv[2:]),
                  **{key: [] for key in model_parity.KEYS}}
        with concurrent.futures.ThreadPoolExecutor(1) as in_turn:
            jobs = [model_parity.start(engine, name, work, in_turn)
                    for name in flags.models.split(",")]
            record["ops"] = [vars(c) for c in compare_ops(EngineOps(BINARIES / "libparity_ops.so"))]
            for job in jobs:
                for key, found in model_parity.finish(job, timed=job is jobs[-1]).items():
                    record[key] += found
                # What was compared so far is kept, should the rest not come to its end.
                write_by_line(record, flags.out)
        record["refused"] = refusals()
        write_by_line(record, flags.out)
    return 0 if print_table(record) else 1


if __name__ == "__main__":
    sys.exit(main())
