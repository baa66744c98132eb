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
import threading

GPU_FIELDS = ("name", "driver_version", "vbios_version", "memory.total", "power.limit",
              "clocks.max.sm", "clocks.max.mem")
SAMPLE_FIELDS = ("timestamp", "clocks.sm", "clocks.mem", "power.draw", "temperature.gpu",
                 "utilization.gpu")


def query(fields):
    """One line of nvidia-smi as a dictionary."""
    line = subprocess.run(["nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader",
                           "--id=0"], capture_output=True, text=True, check=True).stdout
    return dict(zip(fields, (value.strip() for value in line.split(","))))


def sample_until(done, samples):
    """Appends a sample of the card's state every half second."""
    while not done.wait(0.5):
        samples.append(query(SAMPLE_FIELDS))


def binary_and_commit(bench):
    """The bench and the commit, of a bundle or of a built tree."""
    here = pathlib.Path(__file__).resolve().parent
    bundled = here / "bin" / f"cuda_{bench}_bench"
    if bundled.exists():
        return bundled, (here / "COMMIT").read_text().strip()
    root = here.parents[2]
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True,
                          check=True).stdout.strip()
    return root / "build/cuda/bench/kernels/cuda" / bundled.name, head


def write_by_line(record, out):
    """Writes the record with one line for each sample, so that it can be read and compared."""
    parts = []
    for key, value in record.items():
        if isinstance(value, list):
            text = "[\n" + ",\n".join(json.dumps(item) for item in value) + "\n]"
        else:
            text = json.dumps(value)
        parts.append(json.dumps(key) + ": " + text)
    out.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def main():
    arguments, bench = sys.argv[1:], "attention"
    if arguments[0].startswith("--bench="):
        bench = arguments.pop(0).removeprefix("--bench=")
    out, flags = pathlib.Path(arguments[0]), arguments[1:]
    binary, commit = binary_and_commit(bench)
    samples, done = [], threading.Event()
    sampler = threading.Thread(target=sample_until, args=(done, samples))
    sampler.start()
    try:
        subprocess.run([binary, "--benchmark_repetitions=9",
                        "--benchmark_enable_random_interleaving=true",
                        f"--benchmark_out={out}", "--benchmark_out_format=json", *flags],
                       check=True, stdout=subprocess.DEVNULL)
    finally:
        done.set()
        sampler.join()
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
