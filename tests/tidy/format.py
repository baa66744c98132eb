#!/usr/bin/env python3
"""Checks that all C++ is formatted by clang-format with .clang-format, or formats it with --fix.

Exits 77, which ctest shows as skipped, when clang-format 14 is not there: other versions format
differently.
"""

import re
import shutil
import subprocess
import sys

from source_tree import CPP, SourceTree
from tidy import ROOT

VERSION = 14
SKIPPED = 77


def find_clang_format():
    """The command, or None."""
    for name in (f"clang-format-{VERSION}", "clang-format"):
        command = shutil.which(name)
        if command:
            version = subprocess.run([command, "--version"], capture_output=True, text=True,
                                     check=True).stdout
            if re.search(rf"version {VERSION}\.", version):
                return command
    return None


def main(arguments):
    command = find_clang_format()
    if not command:
        print(f"skipped: clang-format {VERSION} is not installed")
        return SKIPPED
    mode = ["-i"] if "--fix" in arguments else ["--dry-run", "-Werror"]
    paths = SourceTree(ROOT).select(CPP)
    done = subprocess.run([command, *mode, *paths], cwd=ROOT, check=False)
    print(f"clang-format: {len(paths)} files")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
