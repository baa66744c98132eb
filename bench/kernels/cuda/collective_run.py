#!/usr/bin/env python3
"""Runs the bench of all-reduces on the host that has the GPUs, and completes its record.

Usage: collective_run.py OUT.json [flags of cuda_collective_bench]

NCCL takes its ring, without NVLink's multicast. The record is the bench's own, every sample of
every case; added are host, driver, and clocks, power and temperature of the first GPU twice a
second while it ran.
"""

import os
import sys

from run import binary_and_commit

from gpu_host import complete_record, parse


def main():
    options, flags = parse(__doc__)
    os.environ.update(NCCL_ALGO="Ring", NCCL_NVLS_ENABLE="0")
    return complete_record("collective_run.py", *binary_and_commit("collective"), options.out,
                           flags, flags)


if __name__ == "__main__":
    sys.exit(main())
