"""Rules about CMake: what is on disk is built, and every test can be found by its label."""

import posixpath
import re

from source_tree import Finding

LABELS = {"unit", "kernels", "integration", "process", "sim", "deploy", "tidy", "gpu", "slow",
          "core", "measured"}


def _cmake(tree, path):
    """The file without its comments."""
    return re.sub(r"(?m)^\s*#.*$|\s#[^\"\n]*$", "", tree.text(path))


def _lists(tree):
    return [p for p in tree.paths if posixpath.basename(p) == "CMakeLists.txt"]


def _sources(tree, path):
    """The words of a CMakeLists.txt that name C++ files, and all its words."""
    words = re.findall(r"[^\s()\";]+", _cmake(tree, path))
    return [w for w in words if w.endswith((".cc", ".cu"))], set(words)


def sources_listed(tree):
    """Every source file is named by the CMakeLists.txt above it: a test that is not built is no
    test."""
    listed = set()
    for path in _lists(tree):
        folder = posixpath.dirname(path)
        named, words = _sources(tree, path)
        for source in tree.select({".cc", ".cu"}, folder + "/" if folder else ""):
            relative = posixpath.relpath(source, folder or ".")
            for name in named:
                pattern = "(.+)".join(re.escape(p) for p in re.split(r"\$\{\w+\}", name))
                match = re.fullmatch(pattern, relative)
                if match and all(group in words for group in match.groups()):
                    listed.add(source)
    for source in tree.select({".cc", ".cu"}):
        if source not in listed:
            yield Finding(source, 0, "no CMakeLists.txt names this file")


def sources_exist(tree):
    """Every source file that a CMakeLists.txt names exists."""
    for path in _lists(tree):
        for name in _sources(tree, path)[0]:
            target = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
            if "$" not in name and target not in tree:
                yield Finding(path, 0, f"{name} does not exist")


def folders_listed(tree):
    """Every CMakeLists.txt is reached from the one at the root."""
    reached, queue = set(), ["CMakeLists.txt"]
    while queue:
        path = queue.pop()
        if path in tree and path not in reached:
            reached.add(path)
            folder = posixpath.dirname(path)
            for name in re.findall(r"add_subdirectory\(\s*([\w/.-]+)", _cmake(tree, path)):
                queue.append(posixpath.normpath(posixpath.join(folder, name, "CMakeLists.txt")))
    for path in _lists(tree):
        if path not in reached:
            yield Finding(path, 0, "no add_subdirectory() leads here")


def no_globs(tree):
    """Sources are listed, so that a new file shows in the diff of the build."""
    for path in tree.select({".txt", ".cmake"}):
        if re.search(r"file\s*\(\s*GLOB", _cmake(tree, path)):
            yield Finding(path, 0, "list the files")


def known_labels(tree):
    """A test's labels are from the list, so that `ctest -L` means something."""
    for path in _lists(tree):
        text = _cmake(tree, path)
        labels = re.findall(r"\bLABELS\s+\"?([\w;\s]+?)\"?\s*(?=[A-Z]{3,}|\)|\")", text)
        for label in {l for group in labels for l in re.split(r"[\s;]+", group) if l}:
            if label not in LABELS:
                yield Finding(path, 0, f"label {label} is not in the list")


RULES = (sources_listed, sources_exist, folders_listed, no_globs, known_labels)
