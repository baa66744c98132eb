#!/usr/bin/env python3
"""Proves a cluster of real processes on this host's GPU, and measures it.

Usage: cluster.py [--out=DIR] [--model=random:qwen3-8b] [--parts=certify,table:300] [--trials=50]

Runs from a bundle (see bundle.sh) or from a built tree, with Python's own library only. Parts:

  certify      `lockstep certify`: the table of certified and refused algorithms, kept for the rest
  latency      one worker: `lockstep bench` at 16 streams of 1024 + 1024 tokens
  table        the published table of batch-invariant engines: how many unique samples prompts have
               that are alone, mixed or behind shared prefixes, first of a worker as it is, then
               beside one that splits attention and linear layers by batch, which has to be seen
  lost         a worker whose device is lost in mid-stream joins: the same bits as without it
  throughput   as latency, at 256 streams
  path         the engine by itself, both benches through all services, and the engine again
  verify       two workers that share the GPU: `lockstep verify --mode=all`, with chunked prefill,
               prefix cache and sampling on; its mode failover kills each worker once
  demo         the demo model on the GPU against the CPU: `lockstep compare`, and the task

On a host with two GPUs, or with as many as --ranks says, and only when asked for:

  tp           a worker on one GPU and one that all share: `lockstep verify --mode=tp` and others,
               of which failover kills each in mid-stream
  ranks        workers join that all GPUs share, of which in mid-stream one is lost, stalls, or is
               no longer driven: they leave, and the one on one GPU gives the same bits without them

A part may have a deadline of its own, in seconds, behind a colon: what it runs then is killed, and
the next part begins. Parts that follow each other share a cluster where they need the same one.

Each part writes DIR/cluster_PART.json (default: here), with machine, driver, commit, command and
the card's clocks and power while it ran. Exits 0 when every part held.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import re
import sys
import tempfile
import time

from cluster_processes import (BUNDLED, HERE, PORT, ROOT, RUNNING, Cluster, ended_within,
                               lockstep)

DEMO_MODEL = ROOT / ("demo-model" if BUNDLED else "deploy/demo-model")
sys.path.insert(0, str(HERE if BUNDLED else ROOT / "bench"))
from gpu_host import GPU_FIELDS, commit_of, query, sampled  # noqa: E402

ENGINE = ROOT / ("bin/engine_bench" if BUNDLED else "build/cuda/bench/engine/engine_bench")
PARTS = ("certify", "latency", "table", "lost", "throughput", "path", "verify", "demo")
RANK_PARTS = ("tp", "ranks")
RANK_FAULTS = ("lost_rank", "stalled_rank", "stuck_rank")
SPLITS = "split_by_batch"
STREAMS = (16, 256)
# Less than the default, so that prompts of thousands of tokens are cut.
SHORT_CHUNKS = "--chunk_tokens=2048"


def rows_of(record):
    """The rows of the published table in a record of `lockstep verify`."""
    kept = re.compile(r"prefix of (1|511|2048|4097) tokens")
    return {(mode["mode"], prompt["prompt"]): prompt
            for mode in record["modes"] for prompt in mode.get("prompts", [])
            if mode["mode"] != "prefix" or kept.fullmatch(prompt["prompt"])}


def default_kv_mib(joined_kv_mib):
    """256 sequences of 2048 tokens of an 8B model, or what a second worker leaves beside it."""
    weights_mib, most_mib = 24 << 10, 80 << 10  # Weights, those of a planted fault, and scratch.
    total_mib = int(query(["memory.total"])["memory.total"].split()[0])
    return max(joined_kv_mib, min(most_mib, total_mib - joined_kv_mib - 2 * weights_mib))


class Proof:
    """What all parts share: options, the certificates, the cluster, the record of a part."""

    def __init__(self, options, work):
        self.options = options
        self.work = work
        self.out = pathlib.Path(options.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.certificates = pathlib.Path(options.certificates or self.out / "certificates.txt")
        self.flags = [f"--model={options.model}", f"--backend={options.backend}"]
        self.segments = f"--reduction_segments={options.reduction_segments or options.ranks}"
        self.on_gpu = options.backend == "cuda"
        if self.on_gpu:
            self.flags.append(f"--certificates={self.certificates}")
        self.kv_mib = options.kv_mib or default_kv_mib(options.joined_kv_mib)
        self.kept = None

    def cluster(self, *flags):
        """The cluster with these flags: that of the part before, or a new one."""
        if self.kept is None or self.kept.flags != flags:
            self.drop()
            begun = time.monotonic()
            self.kept = Cluster(*flags)
            self.kept.start_seconds = round(time.monotonic() - begun, 1)
            print(f"ready after {self.kept.start_seconds} s", flush=True)
        return self.kept

    def sampled(self, samples):
        return sampled(samples, period_seconds=1) if self.on_gpu else contextlib.nullcontext()

    def drop(self):
        if self.kept is not None:
            self.kept.stop()
        self.kept = None

    def served(self, *flags):
        """One worker with most of the GPU, that leaves room for another one to join."""
        return self.cluster("--workers=1", *self.flags, f"--kv_mib={self.kv_mib}", *flags)

    def certify(self):
        begun = time.monotonic()
        text = lockstep("certify", f"--model={self.options.model}",
                        f"--certificates={self.certificates}")[1]
        certified, refused = text.split("refused: other bits than the reference\n")
        refused = [line.strip() for line in refused.splitlines()[1:-1]]
        return {"seconds": round(time.monotonic() - begun, 1),
                "certified": [line.strip() for line in certified.splitlines()[3:]],
                "refused": refused, "held": len(certified.splitlines()) > 3}

    def bench(self, streams):
        path = self.work / "bench.json"
        tokens = self.options.tokens
        cluster = self.served()
        lockstep("bench", f"--target={cluster.target}", f"--streams={streams}",
                 f"--requests={streams}", f"--prompt_tokens={tokens}", f"--new_tokens={tokens}",
                 f"--repeats={self.options.repeats}", f"--out={path}")
        return dict(json.loads(path.read_text()), commit=commit_of(ROOT),
                    start_seconds=cluster.start_seconds, held=True)

    def latency(self):
        return self.bench(STREAMS[0])

    def throughput(self):
        return self.bench(STREAMS[1])

    def engine(self):
        """The same requests without services, in seconds by number of streams."""
        path, tokens = self.work / "engine.json", self.options.tokens
        self.drop()
        workloads = [f"{streams}x{tokens}x{tokens}" for streams in STREAMS]
        command = [ENGINE, *self.flags, "--workloads=" + ",".join(workloads),
                   f"--kv_gib={max(1, self.kv_mib >> 10)}", f"--out={path}"]
        print("$", *command, flush=True)
        if RUNNING.start(*command).wait() != 0:
            raise RuntimeError("the bench of the engine failed")
        runs = json.loads(path.read_text())["runs"]
        return {str(streams): run["seconds"] for streams, run in zip(STREAMS, runs)}

    def path(self):
        engine = [self.engine()]
        benches = {str(streams): self.bench(streams) for streams in STREAMS}
        engine.append(self.engine())
        # How fast the whole path is, as a part of the engine's own speed.
        ratios = {streams: sum(run[streams] for run in engine) / len(engine) / bench["seconds"][0]
                  for streams, bench in benches.items()}
        print("whole path over engine alone:", ratios)
        return {"engine_seconds": engine, "benches": benches, "ratios": ratios, "held": True}

    def table(self):
        trials = self.options.trials
        modes = "--mode=single,mixed,prefix"
        cluster = self.served(SHORT_CHUNKS)
        status, sound = cluster.verify(self.work / "sound.json", modes, f"--trials={trials}")
        with cluster.joined(SPLITS, self.options.joined_kv_mib):
            # Of a prompt's samples each worker gives half.
            planted_status, planted = cluster.verify(self.work / "planted.json", modes,
                                                     f"--trials={2 * trials}")
        beside = rows_of(planted)
        rows = []
        for name, prompt in rows_of(sound).items():
            by_worker = beside[name]["by_worker"]
            rows.append({"mode": name[0], "prompt": name[1], "samples": prompt["samples"],
                         "unique": prompt["unique"], "planted": by_worker[SPLITS],
                         "beside_planted": by_worker["worker-0"]})
        self.print_table(rows)
        seen = planted_status != 0 and all(row["planted"]["unique"] > 1 for row in rows)
        sound_uniques = {row["unique"] for row in rows} | {row["beside_planted"]["unique"]
                                                           for row in rows}
        return {"rows": rows, "exit_status": status, "exit_status_planted": planted_status,
                "sound": sound, "planted": planted, "start_seconds": cluster.start_seconds,
                "held": len(rows) == 9 and status == 0 and sound_uniques == {1} and seen}

    @staticmethod
    def print_table(rows):
        line = "  {:<8}{:<28}{:>9}{:>8}{:>11}{:>8}"
        print(line.format("", "", "as it is", "", "by batch", ""))
        print(line.format("", "", "samples", "unique", "samples", "unique"))
        for row in rows:
            print(line.format(row["mode"], row["prompt"], row["samples"], row["unique"],
                              row["planted"]["samples"], row["planted"]["unique"]), flush=True)

    def answers(self, cluster, path):
        """The samples of one request, and the seconds that they took."""
        begun = time.monotonic()
        lockstep("generate", f"--target={cluster.target}", "--prompt_ids=11,12,13,14,15,16,17",
                 "--n=64", "--seed=7", "--max_new_tokens=96", "--ignore_eos", "--top_p=0.95",
                 "--request_id=", f"--record={path}", quiet=True)
        seconds = round(time.monotonic() - begun, 2)
        return json.loads(path.read_text())["response"]["samples"], seconds

    def disturbed(self, cluster, fault, ranks=1):
        """What a worker with this fault costs that joins: its samples go on in the first one."""
        quiet, quiet_seconds = self.answers(cluster, self.work / "quiet.json")
        with cluster.joined(fault, self.options.joined_kv_mib, ranks) as process:
            samples, seconds = self.answers(cluster, self.work / "disturbed.json")
            exit_code = process.returncode if ended_within(process, 40) else None
        log = (cluster.run_dir / f"{fault}.log").read_text().splitlines()
        kept = ("token_ids", "logprobs", "finish_reason")
        equal = [all(a.get(key) == b.get(key) for key in kept) for a, b in zip(quiet, samples)]
        resumed = sum(int(s["usage"].get("resumptions", 0)) for s in samples)
        events = ("planted_fault", "engine_failed", "unhealthy")
        failed = [line for line in log if any(f" {event} " in line + " " for event in events)]
        return {"samples": len(equal), "equal": sum(equal), "resumptions": resumed,
                "quiet_seconds": quiet_seconds, "seconds": seconds, "exit_code": exit_code,
                "log": failed, "start_seconds": cluster.start_seconds,
                "held": all(equal) and resumed > 0 and exit_code == 1 and bool(failed)}

    def lost(self):
        return self.disturbed(self.served(), "lost_device")

    def ranks(self):
        cluster = self.cluster("--workers=1", "--tensor_parallel=1", self.segments, *self.flags,
                               f"--kv_mib={self.options.joined_kv_mib}")
        faults = {}
        for fault in RANK_FAULTS if self.on_gpu else ("stuck_rank",):
            print(f"with {fault}", flush=True)
            faults[fault] = self.disturbed(cluster, fault, self.options.ranks)
            times = [datetime.datetime.fromisoformat(line.split()[0].rstrip("Z"))
                     for line in faults[fault]["log"]]
            if times:
                faults[fault]["seconds_to_leave"] = (times[-1] - times[0]).total_seconds()
            print({key: value for key, value in faults[fault].items() if key != "log"}, flush=True)
        return {"faults": faults, "held": all(fault["held"] for fault in faults.values())}

    def tp(self):
        return self.verified("tp,prefix,radix_cache,prefill_vs_decode,neighbours,failover",
                             f"--tensor_parallel=1,{self.options.ranks}", self.segments)

    def verify(self):
        return self.verified(self.options.mode)

    def verified(self, mode, *flags):
        cluster = self.cluster("--workers=2", *flags, *self.flags, SHORT_CHUNKS,
                               f"--kv_mib={self.options.verify_kv_mib}")
        _, record = cluster.verify(self.work / "verify.json", f"--mode={mode}",
                                   f"--trials={self.options.trials}",
                                   f"--long_prompt_tokens={self.options.long_prompt}",
                                   f"--long_new_tokens={self.options.long_answer}")
        return dict(record, start_seconds=cluster.start_seconds)

    def demo(self):
        sys.path.insert(0, str(HERE if BUNDLED else ROOT / "bench/demo_model"))
        import random

        import task

        rng = random.Random(20)
        prompts = [task.make_prompt(rng) for _ in range(self.options.prompts)]
        prompts_path = self.work / "prompts.txt"
        prompts_path.write_text("\n".join(prompts) + "\n")
        path = self.work / "compare.json"
        of_demo = ["--workers=1", f"--model={DEMO_MODEL}", "--kv_mib=1024"]
        device = self.cluster(*of_demo, *self.flags[1:])
        host = Cluster(*of_demo, port=PORT + 40)
        try:
            lockstep("compare", f"--target={device.target}", f"--other={host.target}",
                     f"--prompts={prompts_path}", f"--out={path}")
        finally:
            host.stop()
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

    def run(self, part, deadline):
        print(f"=== {part}", flush=True)
        begun, samples = time.monotonic(), []
        record = {}
        try:
            with RUNNING.at_most(deadline), self.sampled(samples):
                record = getattr(self, part)()
        except (RuntimeError, OSError, ValueError, KeyError) as error:
            record = {"held": False, "error": repr(error)}
            if self.kept is not None:
                self.kept.print_logs()
        if not record["held"]:
            self.drop()
        record.update(part=part, commit=commit_of(ROOT), driver=" ".join(sys.argv),
                      gpu=query(GPU_FIELDS) if self.on_gpu else None, cores=os.cpu_count(),
                      part_seconds=round(time.monotonic() - begun, 1), card=samples)
        self.write(part, record)
        print(f"=== {part}: {'held' if record['held'] else 'FAILED'} "
              f"after {record['part_seconds']} s", flush=True)
        return record["held"]

    def write(self, part, record):
        text = json.dumps(record, indent=1) + "\n"
        # A record is read elsewhere, where this host's directories mean nothing.
        for directory, name in ((str(self.work), "WORK"), (self.options.out, "OUT"),
                                (str(ROOT), "ROOT")):
            if os.path.isabs(directory):
                text = text.replace(directory, name)
        text = re.sub(rf"{tempfile.gettempdir()}/lockstep-cluster-\w+", "RUN_DIR", text)
        (self.out / f"cluster_{part}.json").write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out", default=".")
    parser.add_argument("--model", default="random:qwen3-8b")
    parser.add_argument("--backend", default="cuda", help="cpu tries the script without a GPU")
    parser.add_argument("--parts", default=",".join(PARTS), help="each with :SECONDS if wanted")
    parser.add_argument("--mode", default="all", help="of verify")
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--long_prompt", type=int, default=8192, help="tokens, of verify")
    parser.add_argument("--long_answer", type=int, default=4096, help="tokens, of verify")
    parser.add_argument("--tokens", type=int, default=1024, help="of prompt and answer in benches")
    parser.add_argument("--repeats", type=int, default=1, help="of benches")
    parser.add_argument("--prompts", type=int, default=512, help="of the demo model's task")
    parser.add_argument("--kv_mib", type=int, help="KV of the worker that is measured and that "
                        "others join; by default what leaves room for them, at most 80 GiB")
    parser.add_argument("--joined_kv_mib", type=int, default=8 << 10, help="of those")
    parser.add_argument("--verify_kv_mib", type=int, default=16 << 10,
                        help="KV of each worker that is verified: room for 25 answers of 4096 "
                        "tokens, and little enough to be filled")
    parser.add_argument("--ranks", type=int, default=2, help="GPUs that share a model")
    parser.add_argument("--reduction_segments", type=int, help="by default as many as ranks")
    parser.add_argument("--certificates", help="file; by default certificates.txt in --out")
    options = parser.parse_args()
    parts = [part.partition(":") for part in options.parts.split(",")]
    unknown = {name for name, _, _ in parts} - set(PARTS + RANK_PARTS)
    if unknown:
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="lockstep-proof-") as work:
        proof = Proof(options, pathlib.Path(work))
        held = [proof.run(name, float(seconds or 3600)) for name, _, seconds in parts]
        proof.drop()
    print("held: " + ", ".join(f"{part[0]} {'yes' if yes else 'NO'}"
                               for part, yes in zip(parts, held)))
    sys.exit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
