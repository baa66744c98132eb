"""What one mode of the engine costs beside another, from runs that took turns in one process.

Imported by engine_run.py, with Python's own library only.
"""

import random
import statistics

RESAMPLES = 4000


def _numbers(workload):
    """Sequences, prompt tokens, new tokens."""
    return tuple(int(part) for part in workload.split("x"))


def _step(run):
    return statistics.median(run["decode_milliseconds"])


def _prefill(run):
    return run["prefill_seconds"]


def _whole(whole):
    """Seconds of all of `whole`, by the rates of a slice of it: its prefill, and as many decode
    steps as its tokens take in batches of the slice's size."""
    sequences, prompt, new = _numbers(whole)

    def seconds(run):
        batch, slice_prompt, _ = _numbers(run["workload"])
        prefill = run["prefill_seconds"] * sequences * prompt / (batch * slice_prompt)
        return prefill + sequences * new / batch * _step(run) / 1e3

    return seconds


def _resampled(run, rng):
    """The run with its steps drawn again."""
    steps = run["decode_milliseconds"]
    return {**run, "decode_milliseconds": rng.choices(steps, k=len(steps))}


def _ratio(pairs, measure):
    return statistics.median(measure(a) / measure(b) for a, b in pairs)


def _interval(pairs, measure, rng):
    """95 % of the ratio, by a bootstrap over the pairs and over the steps in each run."""
    ratios = []
    for _ in range(RESAMPLES):
        drawn = rng.choices(pairs, k=len(pairs))
        ratios.append(_ratio([(_resampled(a, rng), _resampled(b, rng)) for a, b in drawn],
                             measure))
    ratios.sort()
    return ratios[RESAMPLES * 25 // 1000], ratios[RESAMPLES * 975 // 1000 - 1]


def compare(runs, slices):
    """One row for each workload, measure and other mode: the first mode's time over the other's;
    and of modes of several ranks over their own normal modes. `slices` maps workloads to what they
    are slices of."""
    first = runs[0]["mode"]
    others = sorted({run["mode"] for run in runs} - {first})
    compared = [(first, other) for other in others]
    compared += [(mode, mode + "_normal") for mode in others if mode + "_normal" in others]
    rows = []
    for workload in dict.fromkeys(run["workload"] for run in runs):
        measures = {"prefill": _prefill}
        # A workload that is too short has no step in which all its sequences decode.
        if all(run["decode_milliseconds"] for run in runs if run["workload"] == workload):
            measures["decode step"] = _step
            if workload in slices:
                measures["whole " + slices[workload]] = _whole(slices[workload])
        of = {mode: [run for run in runs if (run["mode"], run["workload"]) == (mode, workload)]
              for mode in (first, *others)}
        for mode, other in compared:
            pairs = list(zip(of[mode], of[other]))
            for name, measure in measures.items():
                low, high = _interval(pairs, measure, random.Random(0))
                rows.append({"workload": workload, "measure": name, "of": mode, "over": other,
                             "ratio": round(_ratio(pairs, measure), 5),
                             "low": round(low, 5), "high": round(high, 5), "pairs": len(pairs)})
    return rows


def print_table(rows):
    """For people."""
    for row in rows:
        print(f"{row['workload']:<14} {row['measure']:<22} {row['of']} / {row['over']}: "
              f"{row['ratio']:.4f}  [{row['low']:.4f}, {row['high']:.4f}]")
