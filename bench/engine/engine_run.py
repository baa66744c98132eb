#!/usr/bin/env python3
"""Runs the bench of the engine on the host that has the GPU, and completes its record.

Usage: engine_run.py OUT.json [--slices=SLICE:WHOLE,…] [flags of engine_bench]

The record is the bench's own: every run and the time of every decode step. Added are host, driver,
and clocks, power and temperature twice a second while it ran; and where several modes took turns,
`ratios`: what the first costs beside each other one, medians of pairs with 95 % intervals.
`--slices` adds workloads that stand for larger ones, which take minutes: 48x6144x24:256x4096x4096
measures 48 sequences at the mean context of the whole, and reckons the whole by their rates.
"""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # In a tree; a bundle has all in one place.
from gpu_host import commit_of, complete_record, parse, write_by_line  # noqa: E402
from mode_ratios import compare, print_table  # noqa: E402


def take_slices(flags):
    """The flags of the bench, and what each slice is a slice of."""
    slices, workloads, rest = {}, [], []
    for flag in flags:
        name, _, value = flag.partition("=")
        if name == "--slices":
            slices.update(pair.split(":") for pair in value.split(","))
        elif name == "--workloads":
            workloads += value.split(",")
        else:
            rest.append(flag)
    return rest + ["--workloads=" + ",".join([*workloads, *slices])], slices


def main():
    options, shown = parse(__doc__)
    out = options.out
    flags, slices = take_slices(shown)
    bundled = (HERE / "COMMIT").exists()
    root = HERE if bundled else HERE.parents[1]
    binary = root / ("bin/engine_bench" if bundled else "build/cuda/bench/engine/engine_bench")
    status = complete_record("engine_run.py", binary, commit_of(root), out, flags, shown)
    if status != 0:
        return status
    record = json.loads(out.read_text())
    if len({run["mode"] for run in record["runs"]}) > 1:
        ratios = compare(record["runs"], slices)
        print_table(ratios)
        write_by_line({"context": record.pop("context"), "ratios": ratios, **record}, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
