#!/usr/bin/env python3
"""Writes docs/roofline.md: what each op of a decode step takes, and the least that it could take.

Usage: docs/generate_roofline.py [--check]     (--check only says whether the page is current)

All figures are of records in bench/results, which the benches write.
"""

import collections
import json
import pathlib
import statistics

import generated_page

PAGE = "docs/roofline.md"
BATCHES = (1, 16, 64, 256)
LAYERS = 36
CONTEXT = 1024
CLUSTER = 8
# Records of steps, by batch.
STEPS = {1: "engine_slices", 16: "engine_slices", 64: "engine_slices", 256: "engine_modes"}

_HEAD = """# Where a decode step's time goes

One H200, Qwen3-8B's shape, deterministic, 1k tokens of context. Each op is timed by a bench of its
own, launches behind each other in a graph:
[cuda_linear.json](../bench/results/cuda_linear.json),
[cuda_attention.json](../bench/results/cuda_attention.json),
[cuda_rows.json](../bench/results/cuda_rows.json). Below them stands the step that an engine takes
([engine_slices.json](../bench/results/engine_slices.json), for 256
[engine_modes.json](../bench/results/engine_modes.json)), measured for itself. What is left over
between the two: the gap from one kind of kernel to the next, the audit's copy, and the second split
that contexts beyond 1024 begin.

*Floor*: the bytes that must move, at 4.33 TB/s, or for products their operations at 750 TFLOP/s
where that is longer; a kernel's own latency is in no floor. Medians, in microseconds a step.

<!-- Written by docs/generate_roofline.py from records of bench/results. -->
"""

_TAIL = """
## What to make of it

- At 16 sequences what moves weights and KV is {moving} % of a step and takes {over} times its
  floor; the rest are ops that move little and wait for each other, nine kernels a layer.
- `o` and `qkv` are far from their floor because they are short: they end soon after the memory's
  queues are full.
- Attention of few sequences is far from its floor because a split of 1024 keys is one CTA's work
  from the first key to the last. That is the price of bits that do not depend on the batch
  ([decision 0014](decisions/0014-kv-block-and-split.md)); from 64 sequences on it costs nothing.
"""


class Records:
    """Medians of the benches."""

    def __init__(self, root):
        self._root = pathlib.Path(root) / "bench" / "results"
        self._linear = self._load("cuda_linear")["points"]
        self._benches = collections.defaultdict(list)
        for name in ("cuda_attention", "cuda_rows"):
            for run in self._load(name)["benchmarks"]:
                self._benches[run["name"].partition("/iterations")[0]].append(run)

    def _load(self, name):
        return json.loads((self._root / f"{name}.json").read_text(encoding="utf-8"))

    def linear(self, layer, rows):
        point = next(one for one in self._linear if one["layer"] == layer and one["rows"] == rows)
        return statistics.median(point["certified_us"]), point["floor_us"]

    def bench(self, name):
        runs = self._benches[name]
        return (statistics.median(run["real_time"] for run in runs) / 1e3,
                runs[0]["floor_seconds"] * 1e6)

    def step(self, batch):
        runs = [run for run in self._load(STEPS[batch])["runs"]
                if run["mode"] == "deterministic"
                and run["workload"].startswith(f"{batch}x{CONTEXT}x")]
        return statistics.median(run["decode_milliseconds_median"] for run in runs) * 1e3


def ops(records, batch):
    """[(op, how often in a step, microseconds, floor)]."""
    def of_layer(name, often=1):
        return (name, often * LAYERS, *records.linear(name, batch))

    def of_rows(label, name, often):
        return (label, often, *records.bench(f"{name}/rows:{batch}"))

    return [
        of_layer("gate_up"), of_layer("down"), of_layer("qkv"), of_layer("o"),
        ("lm_head", 1, *records.linear("lm_head", batch)),
        ("attention", LAYERS,
         *records.bench(f"Decode/block:128/split:1024/batch:{batch}/context:{CONTEXT}")),
        of_rows("SwiGLU", "SwiGlu", LAYERS),
        of_rows("residual and norm", "ResidualRmsNorm/segments:1", 2 * LAYERS),
        of_rows("q and k norm, RoPE, KV write", "QkvPrepare", LAYERS),
        of_rows("embedding", "Embedding", 1),
        of_rows("sampler", f"Sample/plain/cluster:{CLUSTER}", 1),
        of_rows("logprobs", f"Logprobs/plain/cluster:{CLUSTER}", 1),
    ]


MOVING = ("gate_up", "down", "qkv", "o", "lm_head", "attention")


def generate(root):
    records = Records(root)
    tables = {batch: ops(records, batch) for batch in BATCHES}
    lines = ["", "| op | a step has | " + " | ".join(f"batch {batch} | floor" for batch in BATCHES)
             + " |", "| --- | --- |" + " --- | --- |" * len(BATCHES)]
    for index, (op, often, _, _) in enumerate(tables[BATCHES[0]]):
        cells = []
        for batch in BATCHES:
            _, _, took, floor = tables[batch][index]
            cells += [f"{often * took:,.0f}", f"{often * floor:,.0f}"]
        lines.append(f"| {op} | {often} | " + " | ".join(cells) + " |")
    rows = {"sum": [], "step of an engine": [], "left over": []}
    for batch in BATCHES:
        total = sum(often * took for _, often, took, _ in tables[batch])
        floor = sum(often * least for _, often, _, least in tables[batch])
        step = records.step(batch)
        rows["sum"] += [f"{total:,.0f}", f"{floor:,.0f}"]
        rows["step of an engine"] += [f"{step:,.0f}", ""]
        rows["left over"] += [f"{(step - total) / step:.1%}", ""]
    lines += [f"| **{name}** | | " + " | ".join(cells) + " |" for name, cells in rows.items()]
    at_16 = tables[16]
    moving = sum(often * took for op, often, took, _ in at_16 if op in MOVING)
    least = sum(often * floor for op, often, _, floor in at_16 if op in MOVING)
    return _HEAD + "\n".join(lines) + "\n" + _TAIL.format(
        moving=round(100 * moving / records.step(16)), over=f"{moving / least:.2f}")


if __name__ == "__main__":
    generated_page.main(PAGE, generate)
