"""Rules about every text file: length, names, words."""

import pathlib
import re

from source_tree import CPP, TEXT, Finding

COLUMNS = 100
LINES = 500


def columns(tree):
    """At most 100 columns. Markdown's tables and verbatim blocks, addresses and checksums cannot be
    wrapped."""
    for path in tree.select(TEXT):
        fenced = False
        for number, line in enumerate(tree.lines(path), 1):
            fenced ^= path.endswith(".md") and line.lstrip().startswith("```")
            if fenced:
                continue
            if len(line) <= COLUMNS or re.fullmatch(r"\W*\S*https?://\S+|[0-9a-f]{64} .*", line):
                continue
            if not (path.endswith(".md") and line.lstrip().startswith("|")):
                yield Finding(path, number, f"{len(line)} columns, {COLUMNS} are allowed")


def file_length(tree):
    """At most 500 lines: split by who owns the state."""
    for path in tree.select(TEXT):
        count = len(tree.lines(path))
        if count > LINES:
            yield Finding(path, 0, f"{count} lines, {LINES} are allowed")


_DUMPING_GROUNDS = {"util", "utils", "utility", "utilities", "helper", "helpers", "misc", "manager",
                    "managers", "playground", "deprecated", "stuff", "old", "tmp", "temp"}


def telling_names(tree):
    """No file or folder is named after nothing in particular."""
    for path in tree.paths:
        for part in pathlib.PurePosixPath(path).parts:
            words = set(part.split(".")[0].lower().replace("-", "_").split("_"))
            if words & _DUMPING_GROUNDS:
                yield Finding(path, 0, f"{part} does not say what it holds")


def file_case(tree):
    """C++ and proto files are named in snake_case (Highway wants -inl.h)."""
    for path in tree.select(CPP | {".proto"}):
        name = pathlib.PurePosixPath(path).name
        if not re.fullmatch(r"[a-z0-9_]+(-inl)?\.\w+", name):
            yield Finding(path, 0, "use snake_case")


def todo_with_issue(tree):
    """Unfinished work names its issue: TODO(#12)."""
    for path in tree.select(TEXT | {".json"}):
        if path.startswith("tests/tidy/"):
            continue
        for number, line in enumerate(tree.lines(path), 1):
            if re.search(r"\bTODO\b(?!\(#\d+\))|\bFIXME\b|\bXXX\b|\bHACK\b", line):
                yield Finding(path, number, "write TODO(#issue), or do it")


def portable_paths(tree):
    """No absolute path of somebody's machine."""
    for path in tree.select(TEXT | {".json"}):
        for number, line in enumerate(tree.lines(path), 1):
            if re.search(r"(?<![\w.\"*})-])/(home|root|Users|work|workspace)/[\w.]|\.\./shared\b",
                         line):
                yield Finding(path, number, "a path that exists on one machine only")


RULES = (columns, file_length, telling_names, file_case, todo_with_issue, portable_paths)
