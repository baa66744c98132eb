#!/usr/bin/env python3
"""Runs the bench of linear layers on the host that has the GPU, and completes its record.

Usage: linear_run.py OUT.json [flags of cuda_linear_bench]

The record is the bench's own: every sample of every pair, what was certified and what was refused.
Added are host, driver, and clocks, power and temperature twice a second while it ran.
"""

import json
import pathlib
import platform
import re
import subprocess
import sys
import threading

from run import GPU_FIELDS, binary_and_commit, query, sample_until, write_by_line


def without_folders(flag):
    """A flag as another host would give it: of a path only the file's name."""
    return re.sub(r"=.*/", "=", flag)


def main():
    out, flags = pathlib.Path(sys.argv[1]), sys.argv[2:]
    binary, commit = binary_and_commit("linear")
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
                                 command=" ".join(["linear_run.py", out.name,
                                                   *map(without_folders, flags)]))
        record["gpu_samples"] = samples
        write_by_line(record, out)
    return result.returncode


if __name__ == "__main__":
    sys.exit(main())
