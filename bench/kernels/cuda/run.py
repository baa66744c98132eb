#!/usr/bin/env python3
"""Runs the benches of a bundle on the host that has the GPU, and keeps their record.

Usage: run.py [--bench=rows] OUT.json [benchmark flags]   (the bench is attention otherwise)

Repetitions of all cases are interleaved at random, so that what the card does meanwhile falls on
all alike. The record is Google Benchmark's own, every sample included, with machine, driver, commit
and command, and with clocks, power and temperature twice a second while it ran.
"""

import json
import pathlib
import platform
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))  # In a tree; a bundle has all in one place.
from gpu_host import GPU_FIELDS, commit_of, parse, query, sampled, write_by_line  # noqa: E402


def binary_and_commit(bench):
    """The bench and the commit, of a bundle or of a built tree."""
    bundled = HERE / "bin" / f"cuda_{bench}_bench"
    if bundled.exists():
        return bundled, commit_of(HERE)
    root = HERE.parent.parent.parent
    return root / "build/cuda/bench/kernels/cuda" / bundled.name, commit_of(root)


def main():
    options, flags = parse(__doc__, ("--bench", {"default": "attention"}))
    bench, out = options.bench, options.out
    binary, commit = binary_and_commit(bench)
    samples = []
    with sampled(samples):
        subprocess.run([binary, "--benchmark_repetitions=9",
                        "--benchmark_enable_random_interleaving=true",
                        f"--benchmark_out={out}", "--benchmark_out_format=json", *flags],
                       check=True, stdout=subprocess.DEVNULL)
    record = json.loads(out.read_text())
    record["context"].update(gpu=query(GPU_FIELDS), host=platform.platform(), commit=commit,
                             executable=binary.name,
                             command=" ".join(["run.py", f"--bench={bench}", out.name, *flags]))
    record["gpu_samples"] = samples
    # Samples alone: who reads them aggregates as he likes.
    record["benchmarks"] = [b for b in record["benchmarks"] if b["run_type"] == "iteration"]
    write_by_line(record, out)
    failed = [b["name"] for b in record["benchmarks"] if b.get("error_occurred")]
    for name in failed:
        print("failed:", name)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
