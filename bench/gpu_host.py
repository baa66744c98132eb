"""What every record of a GPU host shares: the card, its state while something ran, the commit.

Imported by the scripts that run on such a host, from a built tree or from a bundle
(tests/gpu/bundle.sh), with Python's own library only.
"""

import argparse
import contextlib
import json
import pathlib
import platform
import subprocess
import sys
import threading

GPU_FIELDS = ("name", "driver_version", "vbios_version", "memory.total", "power.limit",
              "clocks.max.sm", "clocks.max.mem")
SAMPLE_FIELDS = ("timestamp", "clocks.sm", "clocks.mem", "power.draw", "temperature.gpu",
                 "utilization.gpu", "memory.used")


def parse(doc, *arguments):
    """OUT.json, the arguments that a script has besides, each a name and argparse's keywords, and
    the flags for what it runs. Ends the script where there is no GPU."""
    parser = argparse.ArgumentParser(description=doc, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, keywords in arguments:
        parser.add_argument(name, **keywords)
    parser.add_argument("out", metavar="OUT.json", type=pathlib.Path)
    options, flags = parser.parse_known_args()
    query(GPU_FIELDS)
    return options, flags


def query(fields):
    """One line of nvidia-smi as a dictionary. Ends the script where it cannot tell."""
    command = ["nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader", "--id=0"]
    try:
        line = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        sys.exit("no nvidia-smi here: this script runs on the host that has the GPU")
    except subprocess.CalledProcessError as error:
        sys.exit(f"no GPU: nvidia-smi says: {(error.stdout + error.stderr).strip()}")
    return dict(zip(fields, (value.strip() for value in line.split(","))))


def commit_of(root):
    """The commit of a bundle, or of a built tree."""
    bundled = root / "COMMIT"
    if bundled.exists():
        return bundled.read_text().strip()
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True,
                          check=True).stdout.strip()


@contextlib.contextmanager
def sampled(samples, period_seconds=0.5):
    """Appends a sample of the card's state every period while the body runs."""
    done = threading.Event()

    def run():
        while not done.wait(period_seconds):
            samples.append(query(SAMPLE_FIELDS))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def write_by_line(record, out):
    """Writes the record with one line for each item of a list, so that it can be compared."""
    parts = []
    for key, value in record.items():
        if isinstance(value, list):
            text = "[\n" + ",\n".join(json.dumps(item) for item in value) + "\n]"
        else:
            text = json.dumps(value)
        parts.append(json.dumps(key) + ": " + text)
    out.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def complete_record(script, binary, commit, out, flags, shown_flags):
    """Runs a bench that writes its own record to `out`, and adds host and card to that; returns the
    bench's exit status. `shown_flags` stand for the flags in the record's command."""
    samples = []
    with sampled(samples):
        result = subprocess.run([binary, f"--out={out}", f"--commit={commit}", *flags], check=False)
    if out.exists():
        record = json.loads(out.read_text())
        record["context"].update(gpu_state=query(GPU_FIELDS), host=platform.platform(),
                                 command=" ".join([script, out.name, *shown_flags]))
        record["gpu_samples"] = samples
        write_by_line(record, out)
    return result.returncode
