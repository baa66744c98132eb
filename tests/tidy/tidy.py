#!/usr/bin/env python3
"""The style rules as a program: prints each violation and exits 1 if there is one.

Usage: tests/tidy/tidy.py [--list] [--long-functions] [ROOT]
  --list            print the rules, one line each
  --long-functions  also print functions over 70 lines; they are no error

A violation with a good reason is listed in exceptions.txt.
"""

import dataclasses
import fnmatch
import pathlib
import re
import sys

_HERE = pathlib.Path(__file__).resolve().parent
ROOT = _HERE.parent.parent
sys.path[:0] = [str(_HERE), str(ROOT / "docs")]

import build_rules  # noqa: E402
import cpp_rules  # noqa: E402
import document_rules  # noqa: E402
import include_rules  # noqa: E402
import proto_rules  # noqa: E402
import text_rules  # noqa: E402
from source_tree import SourceTree  # noqa: E402

RULES = {rule.__name__.replace("_", "-"): rule
         for module in (text_rules, include_rules, cpp_rules, build_rules, proto_rules,
                        document_rules)
         for rule in module.RULES}


@dataclasses.dataclass
class Waiver:
    """One line of exceptions.txt: rule, path or glob, reason."""

    rule: str
    pattern: str
    reason: str
    used: bool = False


def read_waivers(text):
    """(waivers, complaints about the file itself)."""
    waivers, complaints = [], []
    joined = re.sub(r"\n +", " ", text)  # An indented line continues the one above.
    for number, line in enumerate(joined.splitlines(), 1):
        words = line.split(maxsplit=2)
        if not words or words[0].startswith("#"):
            continue
        if len(words) < 3 or len(words[2].split()) < 4:
            complaints.append(f"exceptions.txt: entry {number}: give rule, path, reason")
        elif words[0] not in RULES:
            complaints.append(f"exceptions.txt: entry {number}: there is no rule {words[0]}")
        else:
            waivers.append(Waiver(*words))
    return waivers, complaints


def check(tree, waivers):
    """Violations that no waiver covers, as printable lines; then waivers that cover nothing."""
    problems = []
    for name, rule in RULES.items():
        for finding in sorted(set(rule(tree))):
            covering = [w for w in waivers
                        if w.rule == name and fnmatch.fnmatch(finding.path, w.pattern)]
            for waiver in covering:
                waiver.used = True
            if not covering:
                place = f"{finding.path}:{finding.line}" if finding.line else finding.path
                problems.append(f"{place}: {finding.message} [{name}]")
    for waiver in waivers:
        if not waiver.used:
            problems.append(f"exceptions.txt: {waiver.rule} {waiver.pattern} is no longer needed")
    return problems


def main(arguments):
    if "--list" in arguments:
        for name, rule in RULES.items():
            print(f"{name:24} {' '.join(rule.__doc__.split())}")
        return 0
    roots = [a for a in arguments if not a.startswith("--")]
    tree = SourceTree(roots[0] if roots else ROOT)
    waivers, problems = read_waivers((_HERE / "exceptions.txt").read_text(encoding="utf-8"))
    problems += check(tree, waivers)
    for problem in problems:
        print(problem)
    if "--long-functions" in arguments:
        for lines, path, line, head in sorted(cpp_rules.long_functions(tree), reverse=True):
            print(f"note: {lines} lines: {path}:{line}: {head}")
    print(f"tidy: {len(RULES)} rules, {len(tree.paths)} files, {len(waivers)} exceptions, "
          f"{len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
