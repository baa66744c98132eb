#!/usr/bin/env python3
"""Runs tests on the host that has the GPU, and keeps their record.

Usage: ops_run.py [--jobs=N] OUT.json [gtest flags]   (in a bundle's directory, or in a built tree)

N processes (8 unless given) share the GPU, each with a part of a binary's cases. The record holds
every case with its result and seconds, and machine, driver and commit. The status says whether no
case failed and some of every binary ran; cases that skip themselves, as those of clusters do for
portable kernels, are in the record as skipped.
"""

import concurrent.futures
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "bench"))  # In a tree; a bundle has all in one place.
from gpu_host import GPU_FIELDS, commit_of, parse, query, write_by_line  # noqa: E402

# Those that take longest first.
TESTS = ("gpu_model_test", "gpu_attention_test", "gpu_golden_test", "gpu_sample_test",
         "gpu_logprobs_test", "gpu_linear_test", "gpu_linear_mma_test", "gpu_rows_test",
         "gpu_linear_audit_test", "gpu_shadow_test", "gpu_worker_test", "gpu_staged_copy_test",
         "gpu_refused_shapes_test", "gpu_kernel_path_test", "gpu_other_splits_test")
# Their cases are about numbers alone.
WITHOUT_DEVICE = {"gpu_kernel_path_test", "gpu_other_splits_test"}


def run_part(binary, part, parts, flags, folder):
    """Exit status, output and cases of one part of a binary."""
    out = folder / f"{binary.name}-{part}.json"
    env = dict(os.environ, GTEST_TOTAL_SHARDS=str(parts), GTEST_SHARD_INDEX=str(part))
    result = subprocess.run([binary, f"--gtest_output=json:{out}", "--gtest_brief=1", *flags],
                            env=env, capture_output=True, text=True, check=False)
    cases = []
    if out.exists():
        for suite in json.loads(out.read_text())["testsuites"]:
            for case in suite["testsuite"]:
                if case["status"] != "RUN":
                    continue
                cases.append({"test": binary.name, "case": f"{suite['name']}.{case['name']}",
                              "result": "FAILED" if "failures" in case else case["result"],
                              "seconds": float(case["time"].rstrip("s"))})
    return result.returncode, result.stdout + result.stderr, cases


def main():
    options, flags = parse(__doc__, ("--jobs", {"type": int, "default": 8}))
    out, jobs = options.out, options.jobs
    bundled = (HERE / "bin").exists()
    root = HERE if bundled else HERE.parent.parent
    binaries = root / ("bin" if bundled else "build/cuda/tests/gpu")
    cases, ended_badly = [], []
    with tempfile.TemporaryDirectory() as folder, \
            concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        parts = {pool.submit(run_part, binaries / test, part, jobs, flags, pathlib.Path(folder)):
                 f"{test}, part {part} of {jobs}" for test in TESTS for part in range(jobs)}
        for done in concurrent.futures.as_completed(parts):
            status, text, of_part = done.result()
            cases += of_part
            if status != 0:
                ended_badly.append(parts[done])
                print(f"{parts[done]} ended with status {status}\n{text[-2000:]}")
    cases.sort(key=lambda case: (TESTS.index(case["test"]), case["case"]))
    counts = {result: sum(case["result"] == result for case in cases)
              for result in ("COMPLETED", "SKIPPED", "FAILED")}
    print(f"{len(cases)} cases: " + ", ".join(f"{n} {name}" for name, n in counts.items()))
    write_by_line({"context": {"commit": commit_of(root), "gpu": query(GPU_FIELDS),
                               "host": platform.platform(),
                               "command": " ".join(["ops_run.py", out.name, f"--jobs={jobs}",
                                                    *flags])},
                   "counts": counts, "ended_badly": ended_badly, "cases": cases}, out)
    silent = set(TESTS) - WITHOUT_DEVICE - {case["test"] for case in cases
                                              if case["result"] == "COMPLETED"}
    for test in sorted(silent):
        print(f"{test}: no case ran")
    return 1 if ended_badly or counts["FAILED"] or silent else 0


if __name__ == "__main__":
    sys.exit(main())
