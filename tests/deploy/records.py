"""What a test measured, kept as a record of bench/results where it was started with
`--record=FILE`: machine, commit, command, and every figure. Nothing is kept of a run that failed.

    in a case:      records.measured("longest_pause_seconds", 12.3)
    at the end:     records.main()
"""

import datetime
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FLAG = "--record="
# Before a test takes its own arguments away.
COMMAND = list(sys.argv)
_measured = {}


def measured(name, value):
    """Keeps a figure under a name of its own, and prints it unless it is a list."""
    if name in _measured:
        raise AssertionError(f"measured twice: {name}")
    _measured[name] = value
    if not isinstance(value, list):
        print(f"{name}: {value}", file=sys.stderr)


def _git(*words):
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True,
                          check=True).stdout.strip()


def _processor():
    found = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    return found.group(1) if found else "unknown"


def _context():
    """As `lockstep bench` writes it. The binary is taken for one of this commit."""
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return {
        "command": " ".join(COMMAND),
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD") + (" with changes" if changed else ""),
        "machine": {"processor": _processor(), "cores": os.cpu_count(),
                    "system": f"{platform.system()} {platform.release()}"},
    }


def _text(record):
    """One line for each item of a list, so that records can be compared."""
    parts = []
    for key, value in record.items():
        text = json.dumps(value)
        if isinstance(value, list):
            text = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
        parts.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def write(path):
    """Keeps what was measured."""
    path = pathlib.Path(path)
    record = {"bench": path.stem, **_context(), **_measured}
    path.write_text(_text(record), encoding="utf-8")


def main():
    """unittest.main() of a test whose own arguments are taken from sys.argv already."""
    flags = [word for word in sys.argv[1:] if word.startswith(FLAG)]
    sys.argv = [word for word in sys.argv if not word.startswith(FLAG)]
    result = unittest.main(exit=False).result
    if flags and result.wasSuccessful() and not result.skipped:
        write(flags[-1].removeprefix(FLAG))
    sys.exit(not result.wasSuccessful())
