#!/usr/bin/env python3
"""Runs the bench of linear layers on the host that has the GPU, and completes its record.

Usage: linear_run.py OUT.json [flags of cuda_linear_bench]

The record is the bench's own: every sample of every pair, what was certified and what was refused.
Added are host, driver, and clocks, power and temperature twice a second while it ran.
"""

import re
import sys

from run import binary_and_commit

from gpu_host import complete_record, parse


def without_folders(flag):
    """A flag as another host would give it: of a path only the file's name."""
    return re.sub(r"=.*/", "=", flag)


def main():
    options, flags = parse(__doc__)
    return complete_record("linear_run.py", *binary_and_commit("linear"), options.out, flags,
                           map(without_folders, flags))


if __name__ == "__main__":
    sys.exit(main())
