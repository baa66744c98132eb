#!/usr/bin/env python3
"""Runs the bench of the engine on the host that has the GPU, and completes its record.

Usage: engine_run.py OUT.json [flags of engine_bench]

The record is the bench's own: every run and the time of every decode step. Added are host, driver,
and clocks, power and temperature twice a second while it ran.
"""

import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # In a tree; a bundle has all in one place.
from gpu_host import commit_of, complete_record  # noqa: E402


def main():
    out, flags = pathlib.Path(sys.argv[1]), sys.argv[2:]
    bundled = (HERE / "COMMIT").exists()
    root = HERE if bundled else HERE.parents[1]
    binary = root / ("bin/engine_bench" if bundled else "build/cuda/bench/engine/engine_bench")
    return complete_record("engine_run.py", binary, commit_of(root), out, flags, flags)


if __name__ == "__main__":
    sys.exit(main())
