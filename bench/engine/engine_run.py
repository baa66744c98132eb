#!/usr/bin/env python3
"""Runs the bench of the engine on the host that has the GPU, and completes its record.

Usage: engine_run.py OUT.json [flags of engine_bench]

The record is the bench's own: every run and the time of every decode step. Added are host, driver,
and clocks, power and temperature twice a second while it ran.
"""

import json
import pathlib
import platform
import subprocess
import sys
import threading

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "kernels/cuda"))  # In a tree; a bundle has all in one place.
from run import GPU_FIELDS, query, sample_until, write_by_line  # noqa: E402


def binary_and_commit():
    """The bench and the commit, of a bundle or of a built tree."""
    if (HERE / "COMMIT").exists():
        return HERE / "bin/engine_bench", (HERE / "COMMIT").read_text().strip()
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True,
                          check=True).stdout.strip()
    return HERE.parents[1] / "build/cuda/bench/engine/engine_bench", head


def main():
    out, flags = pathlib.Path(sys.argv[1]), sys.argv[2:]
    binary, commit = binary_and_commit()
    samples, done = [], threading.Event()
    sampler = threading.Thread(target=sample_until, args=(done, samples))
    sampler.start()
    try:
        result = subprocess.run([binary, f"--out={out}", f"--commit={commit}", *flags], check=False)
    finally:
        done.set()
        sampler.join()
    if out.exists():
        record = json.loads(out.read_text())
        record["context"].update(gpu_state=query(GPU_FIELDS), host=platform.platform(),
                                 command=" ".join(["engine_run.py", out.name, *flags]))
        record["gpu_samples"] = samples
        write_by_line(record, out)
    return result.returncode


if __name__ == "__main__":
    sys.exit(main())
