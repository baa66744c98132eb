#!/usr/bin/env python3
"""How much memory each process of a cluster gains by serving: a line through its anonymous pages.

    bench/cluster/memory_slope.py [--binary=build/release/services/cli/lockstep] [--calls=100000]
                                  [--out=bench/results/memory_slope.json]

Starts `lockstep up --model=null:`, sends it one call after the other with `lockstep bench`, and
reads /proc/PID/smaps_rollup once a second. The slope is that of the last 80 % of the calls, in KB a
thousand of them. The first fifth fills what is bounded: threads, caches of the allocator, plans
that the scheduler keeps for 8 s.
"""

import argparse
import json
import pathlib
import re
import subprocess
import tempfile
import time
import urllib.request

_SAMPLE_SECONDS = 1.0
_START_SECONDS = 60
_REST_SECONDS = 10
_WARM_UP_FRACTION = 0.2
# What runs, waits or is reserved: 0 in a cluster at rest.
_WORK = ("lockstep_gateway_samples_open", "lockstep_gateway_kept_result_bytes",
         "lockstep_router_sequences", "lockstep_scheduler_queued_sequences",
         "lockstep_scheduler_running_sequences", "lockstep_scheduler_kv_blocks_reserved",
         "lockstep_worker_sequences_running", "lockstep_worker_sequences_waiting",
         "lockstep_worker_kv_blocks_used")


def anonymous_kb(pid):
    text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.search(r"^Anonymous:\s+(\d+) kB", text, re.MULTILINE).group(1))


def metrics(url):
    """Metric names to values, summed over labels."""
    totals = {}
    for line in urllib.request.urlopen(url, timeout=10).read().decode().splitlines():
        found = re.match(r"([a-z_]+)(?:\{[^}]*\})? (\S+)$", line)
        if found:
            totals[found.group(1)] = totals.get(found.group(1), 0) + float(found.group(2))
    return totals


def work_now(urls):
    totals = [metrics(url) for url in urls.values()]
    return {name: sum(page.get(name, 0) for page in totals) for name in _WORK}


def work_left(urls):
    """What is still there at rest: releases travel in batches, behind the last answer."""
    deadline = time.monotonic() + _REST_SECONDS
    left = work_now(urls)
    while any(left.values()) and time.monotonic() < deadline:
        left = work_now(urls)
    return left


def slope(points):
    """Least squares through (x, y)."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    return (sum((x - mean_x) * (y - mean_y) for x, y in points)
            / sum((x - mean_x) ** 2 for x, _ in points))


def start(binary, run_dir):
    """The cluster and, by process, the addresses of its metrics."""
    up = subprocess.Popen([binary, "up", "--model=null:", "--port=0", f"--run_dir={run_dir}"],
                          stdout=subprocess.PIPE, text=True)
    urls = {}
    deadline = time.monotonic() + _START_SECONDS
    for line in up.stdout:
        found = re.match(r"\s+(\S+)\s+\S+:\d+\s+(http://\S+)", line)
        if found:
            urls[found.group(1)] = found.group(2)
        if line.startswith("trainers call") or time.monotonic() > deadline:
            break
    return up, urls


def ended_within(child, seconds):
    try:
        child.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def measure(binary, calls, run_dir):
    up, urls = start(binary, run_dir)
    try:
        target = (run_dir / "gateway.address").read_text().strip()
        pids = {name: int((run_dir / f"{name}.pid").read_text()) for name in urls}
        report_path = run_dir / "bench.json"
        load = subprocess.Popen([binary, "bench", "--mode=latency", f"--target={target}",
                                 f"--calls={calls}", f"--out={report_path}"],
                                stdout=subprocess.DEVNULL)
        samples = []
        done = False
        while not done:
            done = ended_within(load, _SAMPLE_SECONDS)
            served = metrics(urls["gateway"])["lockstep_gateway_requests_total"]
            samples.append({"calls": served, **{n: anonymous_kb(pid) for n, pid in pids.items()}})
        if load.returncode != 0:
            raise SystemExit("lockstep bench failed")
        bench = json.loads(report_path.read_text())
        begin = _WARM_UP_FRACTION * samples[-1]["calls"]
        late = [s for s in samples if s["calls"] >= begin]
        report = {"bench": "memory_slope",
                  "command": f"bench/cluster/memory_slope.py --calls={calls}"}
        report.update({key: bench[key] for key in ("time", "commit", "machine", "calls", "p50_us")})
        report["slope_kb_per_1000_calls"] = {
            name: round(slope([(s["calls"] / 1000, s[name]) for s in late]), 3) for name in pids}
        report["work_left"] = work_left(urls)
        report["anonymous_kb"] = samples
        return report
    finally:
        up.terminate()
        up.communicate()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default="build/release/services/cli/lockstep")
    parser.add_argument("--calls", type=int, default=100000)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lockstep-memory-") as folder:
        report = measure(options.binary, options.calls, pathlib.Path(folder))
    for name, value in report["slope_kb_per_1000_calls"].items():
        print(f"{name:12} {value:8.3f} KB / 1000 calls")
    print("work left:", {name: value for name, value in report["work_left"].items() if value})
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
