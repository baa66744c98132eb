#!/usr/bin/env python3
"""Proves a cluster of real processes on this host's GPU, and measures it.

Usage: cluster.py [--out=DIR] [--model=random:qwen3-8b] [--parts=certify,verify,…] [--trials=50]

Runs from a bundle (see bundle.sh) or from a built tree, with Python's own library only. Parts:

  certify      `lockstep certify`: the table of certified and refused algorithms, kept for the rest
  verify       two workers that share the GPU: `lockstep verify --mode=all`, with chunked prefill,
               prefix cache and sampling on; its mode failover kills each worker once
  throughput   one worker with the whole GPU: `lockstep bench` at 256 streams
  latency      the same at 16 streams of 1024 + 1024 tokens
  demo         the demo model on the GPU against the CPU: `lockstep compare`, and the task
  planted      a worker that splits the KV by batch joins: `verify` has to find it
  lost         a worker whose device is lost in mid-stream joins: the same bits as without it

Each part writes DIR/cluster_PART.json (default: here), with machine, driver, commit, command and
the card's clocks and power while it ran. Exits 0 when every part held.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
BUNDLED = (HERE / "bin/lockstep").exists()
ROOT = HERE if BUNDLED else HERE.parents[1]
LOCKSTEP = ROOT / ("bin/lockstep" if BUNDLED else "build/cuda/services/cli/lockstep")
FAULTY = ROOT / ("bin/gpu_faulty_worker" if BUNDLED else "build/cuda/tests/gpu/gpu_faulty_worker")
DEMO_MODEL = ROOT / ("demo-model" if BUNDLED else "deploy/demo-model")
PORT = 7300
sys.path.insert(0, str(HERE if BUNDLED else ROOT / "bench"))
from gpu_host import GPU_FIELDS, commit_of, query, sampled  # noqa: E402


def ended_within(process, seconds):
    """Whether the process has ended, once it has or the time is over."""
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def lockstep(*arguments, check=True, quiet=False):
    """Runs a verb and shows what it prints; returns exit status and output."""
    if not quiet:
        print("$ lockstep", *arguments, flush=True)
    process = subprocess.Popen([LOCKSTEP, *map(str, arguments)], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
    lines = []
    for line in process.stdout:
        lines.append(line)
        if not quiet:
            print(line, end="", flush=True)
    status = process.wait()
    if check and status != 0:
        raise RuntimeError(f"lockstep {arguments[0]} ended with {status}")
    return status, "".join(lines)


class Cluster:
    """`lockstep up` on ports from `port` on, with its run directory."""

    def __init__(self, *flags, port=PORT):
        self.target = f"127.0.0.1:{port}"
        self.run_dir = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-cluster-"))
        self.command = [LOCKSTEP, "up", f"--port={port}", f"--run_dir={self.run_dir}",
                        "--start_timeout=5m", *map(str, flags)]
        self.joined = []

    def __enter__(self):
        print("$", *self.command[1:], flush=True)
        self.begun = time.monotonic()
        self.process = subprocess.Popen(self.command)
        while not (self.run_dir / "gateway.address").exists():
            if ended_within(self.process, 0.1):
                self.print_logs()
                raise RuntimeError("the cluster did not start")
        self.start_seconds = round(time.monotonic() - self.begun, 1)
        print(f"ready after {self.start_seconds} s", flush=True)
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self.print_logs()
        for process in self.joined:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.process.send_signal(signal.SIGINT)
        self.process.wait()

    def print_logs(self):
        """The ends of all logs: what a failure needs and a bundle's host does not keep."""
        for log in sorted(self.run_dir.glob("*.log")):
            print(f"--- {log.name}\n" + log.read_text()[-1500:], flush=True)

    def join(self, fault):
        """Adds a worker with a planted fault; returns its process once the cluster has it."""
        config = (self.run_dir / "worker-0.textproto").read_text()
        for old, new in ((r'(worker_id: )"[^"]*"', rf'\1"{fault}"'),
                         (r'(metrics_listen: )"[^"]*"', rf'\1"127.0.0.1:{PORT + 91}"'),
                         (r'( listen: )"[^"]*"', rf'\1"127.0.0.1:{PORT + 90}"')):
            config, count = re.subn(old, new, config)
            assert count == 1, old
        path = self.run_dir / f"{fault}.textproto"
        path.write_text(config)
        log = open(self.run_dir / f"{fault}.log", "w", encoding="utf-8")
        process = subprocess.Popen([FAULTY, fault, path], stdout=log, stderr=log)
        self.joined.append(process)
        while fault not in lockstep("info", f"--target={self.target}", quiet=True)[1]:
            if ended_within(process, 1):
                raise RuntimeError(f"the worker with {fault} did not start")
        return process


class Proof:
    """What all parts share: options, the certificates, the record of a part."""

    def __init__(self, options):
        self.options = options
        self.out = pathlib.Path(options.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.certificates = pathlib.Path(options.certificates or self.out / "certificates.txt")
        self.cuda = ["--backend=cuda", f"--certificates={self.certificates}"]

    def certify(self):
        begun = time.monotonic()
        text = lockstep("certify", f"--model={self.options.model}",
                        f"--certificates={self.certificates}")[1]
        certified, refused = text.split("refused: other bits than the reference\n")
        refused = [line.strip() for line in refused.splitlines()[1:-1]]
        return {"seconds": round(time.monotonic() - begun, 1),
                "certified": [line.strip() for line in certified.splitlines()[3:]],
                "refused": refused, "held": len(certified.splitlines()) > 3}

    def verify(self):
        path = self.out / "verify.json"
        # Less than the default chunk, so that prompts of thousands of tokens are cut.
        with Cluster("--workers=2", f"--model={self.options.model}", "--chunk_tokens=2048",
                     f"--kv_mib={self.options.verify_kv_mib}", *self.cuda) as cluster:
            lockstep("verify", f"--target={cluster.target}", f"--run_dir={cluster.run_dir}",
                     f"--mode={self.options.mode}", f"--trials={self.options.trials}",
                     f"--long_prompt_tokens={self.options.long_prompt}",
                     f"--long_new_tokens={self.options.long_answer}", f"--out={path}", check=False)
            record = json.loads(path.read_text())
            record["start_seconds"] = cluster.start_seconds
        return record

    def bench(self, streams):
        path = self.out / "bench.json"
        tokens = self.options.tokens
        with Cluster("--workers=1", f"--model={self.options.model}", "--kv_mib=0",
                     *self.cuda) as cluster:
            lockstep("bench", f"--target={cluster.target}", f"--streams={streams}",
                     f"--requests={streams}", f"--prompt_tokens={tokens}", f"--new_tokens={tokens}",
                     "--repeats=1", f"--out={path}")
            record = json.loads(path.read_text())
            record["start_seconds"] = cluster.start_seconds
        return dict(record, held=True)

    def throughput(self):
        return self.bench(256)

    def latency(self):
        return self.bench(16)

    def demo(self):
        sys.path.insert(0, str(HERE if BUNDLED else ROOT / "bench/demo_model"))
        import random

        import task

        rng = random.Random(20)
        prompts = [task.make_prompt(rng) for _ in range(self.options.prompts)]
        prompts_path = self.out / "prompts.txt"
        prompts_path.write_text("\n".join(prompts) + "\n")
        path = self.out / "compare.json"
        with Cluster("--workers=1", f"--model={DEMO_MODEL}", "--kv_mib=1024",
                     *self.cuda) as device, \
                Cluster("--workers=1", f"--model={DEMO_MODEL}", "--kv_mib=1024",
                        port=PORT + 40) as host:
            lockstep("compare", f"--target={device.target}", f"--other={host.target}",
                     f"--prompts={prompts_path}", f"--out={path}")
        record = json.loads(path.read_text())
        for column, name in ((1, "accuracy_device"), (2, "accuracy_host")):
            right = sum(task.reward(answer[0], answer[column]) for answer in record["answers"])
            record[name] = right / len(prompts)
        # Prompts are drawn at random, so that nobody can tell their next digit: ties of the model.
        answers = record["of_answers"]
        share = answers["equal"] / answers["positions"]
        # Two standard deviations of the difference of two accuracies of so many answers.
        noise = 2 * (0.06 / len(prompts) * 2) ** 0.5
        difference = abs(record["accuracy_device"] - record["accuracy_host"])
        return dict(record, share=share, held=share >= 0.999 and difference <= noise)

    def planted(self):
        path = self.out / "planted.json"
        with Cluster("--workers=1", f"--model={self.options.model}",
                     f"--kv_mib={self.options.verify_kv_mib}", *self.cuda) as cluster:
            cluster.join("split_by_batch")
            status, _ = lockstep("verify", f"--target={cluster.target}", "--mode=mixed",
                                 f"--trials={self.options.trials}", f"--out={path}", check=False)
            record = json.loads(path.read_text())
        unique = max(prompt["unique"] for mode in record["modes"] for prompt in mode["prompts"])
        return dict(record, unique_max=unique, held=status != 0 and unique > 1)

    def lost(self):
        quiet, disturbed = self.out / "quiet.json", self.out / "disturbed.json"
        flags = ["--prompt_ids=11,12,13,14,15,16,17", "--n=64", "--seed=7", "--max_new_tokens=96",
                 "--ignore_eos", "--top_p=0.95", "--request_id="]
        with Cluster("--workers=1", f"--model={self.options.model}",
                     f"--kv_mib={self.options.verify_kv_mib}", *self.cuda) as cluster:
            target = f"--target={cluster.target}"
            lockstep("generate", target, *flags, f"--record={quiet}", quiet=True)
            process = cluster.join("lost_device")
            lockstep("generate", target, *flags, f"--record={disturbed}", quiet=True)
            exit_code = process.returncode if ended_within(process, 20) else None
            log = (cluster.run_dir / "lost_device.log").read_text()
        samples = [json.loads(path.read_text())["response"]["samples"]
                   for path in (quiet, disturbed)]
        kept = ("token_ids", "logprobs", "finish_reason")
        equal = [all(a.get(key) == b.get(key) for key in kept) for a, b in zip(*samples)]
        resumed = sum(int(s["usage"].get("resumptions", 0)) for s in samples[1])
        failed = [line for line in log.splitlines() if "engine_failed" in line]
        return {"samples": len(equal), "equal": sum(equal), "resumptions": resumed,
                "exit_code": exit_code, "log": failed,
                "held": all(equal) and resumed > 0 and exit_code == 1 and bool(failed)}

    def run(self, part):
        print(f"=== {part}", flush=True)
        begun, samples = time.monotonic(), []
        record = {}
        try:
            with sampled(samples, period_seconds=1):
                record = getattr(self, part)()
        except (RuntimeError, OSError, ValueError) as error:
            record = {"held": False, "error": str(error)}
        record.update(part=part, commit=commit_of(ROOT), gpu=query(GPU_FIELDS),
                      driver=" ".join(sys.argv), part_seconds=round(time.monotonic() - begun, 1),
                      cores=os.cpu_count(), card=samples)
        text = json.dumps(record, indent=1) + "\n"
        # A record is read elsewhere, where this host's directories mean nothing.
        for directory, name in ((self.options.out, "OUT"), (str(ROOT), "ROOT")):
            if os.path.isabs(directory):
                text = text.replace(directory, name)
        text = re.sub(rf"{tempfile.gettempdir()}/lockstep-cluster-\w+", "RUN_DIR", text)
        (self.out / f"cluster_{part}.json").write_text(text)
        print(f"=== {part}: {'held' if record['held'] else 'FAILED'} "
              f"after {record['part_seconds']} s", flush=True)
        return record["held"]


def main():
    parts = ("certify", "verify", "throughput", "latency", "demo", "planted", "lost")
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out", default=".")
    parser.add_argument("--model", default="random:qwen3-8b")
    parser.add_argument("--parts", default=",".join(parts))
    parser.add_argument("--mode", default="all", help="of verify")
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--long_prompt", type=int, default=8192, help="tokens, of verify")
    parser.add_argument("--long_answer", type=int, default=4096, help="tokens, of verify")
    parser.add_argument("--tokens", type=int, default=1024, help="of prompt and answer in benches")
    parser.add_argument("--prompts", type=int, default=512, help="of the demo model's task")
    parser.add_argument("--verify_kv_mib", type=int, default=6144,
                        help="KV of a worker that is verified: little, so that it can be filled")
    parser.add_argument("--certificates", help="file; by default certificates.txt in --out")
    options = parser.parse_args()
    unknown = set(options.parts.split(",")) - set(parts)
    if unknown:
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}")
    proof = Proof(options)
    held = [proof.run(part) for part in options.parts.split(",")]
    sys.exit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
