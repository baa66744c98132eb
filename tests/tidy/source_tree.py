"""The files that tidy looks at, and C++ text with comments and strings told apart from code."""

import dataclasses
import functools
import pathlib
import re
import shutil
import subprocess

CPP = {".h", ".cc", ".cu", ".cuh"}
TEXT = CPP | {".proto", ".py", ".md", ".txt", ".cmake", ".sh", ".mjs", ".yaml", ".yml"}
# Data that tests and the demo model read: other people's formats, with their own line lengths.
DATA = ("deploy/demo-model/", "tests/fuzz/corpus/", "tests/unit/model/fixtures/")


@dataclasses.dataclass(frozen=True, order=True)
class Finding:
    """One violation. Line 0 is the file as a whole."""

    path: str
    line: int
    message: str


class SourceTree:
    """All files of a checkout that git would commit, read at most once."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.paths = sorted(p for p in self._list() if (self.root / p).is_file())
        self._known = set(self.paths)

    def _list(self):
        command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others",
                   "--exclude-standard"]
        if (self.root / ".git").exists() and shutil.which("git"):
            listed = subprocess.run(command, cwd=self.root, check=True, capture_output=True)
            return {p for p in listed.stdout.decode().split("\0") if p}
        # An unpacked archive, or a test's planted tree.
        found = (p.relative_to(self.root).as_posix() for p in self.root.rglob("*"))
        return {p for p in found if not re.match(r"build/|\.(?!ci/|clang)|(.*/)?__pycache__/", p)}

    def __contains__(self, path):
        return path in self._known

    def select(self, suffixes, under=""):
        """Paths with one of the suffixes, data files left out."""
        return [p for p in self.paths
                if pathlib.PurePosixPath(p).suffix in suffixes and p.startswith(under)
                and not (p.startswith(DATA) and not p.endswith((".py", ".md")))]

    @functools.lru_cache(maxsize=None)
    def text(self, path):
        return (self.root / path).read_text(encoding="utf-8", errors="replace")

    @functools.lru_cache(maxsize=None)
    def lines(self, path):
        return self.text(path).splitlines()

    @functools.lru_cache(maxsize=None)
    def code(self, path):
        """C++ with comments and the insides of literals blanked; lines keep their numbers."""
        return _split_cpp(self.text(path))[0]

    @functools.lru_cache(maxsize=None)
    def comments(self, path):
        """(line, text after the slashes) of each `//` comment of a C++ file."""
        return _split_cpp(self.text(path))[1]

    @functools.lru_cache(maxsize=None)
    def includes(self, path):
        """(line, target, is_quoted) of each #include."""
        found = []
        for number, line in enumerate(self.lines(path), 1):
            match = re.match(r'\s*#\s*include\s+(["<])([^">]+)[">]', line)
            if match:
                found.append((number, match.group(2), match.group(1) == '"'))
        return found

    @functools.lru_cache(maxsize=None)
    def include_closure(self, path):
        """{included path or name: the file that includes it}, through all headers of the tree."""
        reached = {}
        queue = [path]
        while queue:
            current = queue.pop()
            for _, target, _ in self.includes(current):
                if target not in reached:
                    reached[target] = current
                    if target in self:
                        queue.append(target)
        return reached


_TOKEN = re.compile(
    r'//(?P<comment>[^\n]*)'
    r'|/\*.*?\*/'
    r'|R"(?P<mark>[^()\\ ]*)\(.*?\)(?P=mark)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'",
    re.DOTALL)


def _split_cpp(text):
    comments = []

    def blank(match):
        token = match.group(0)
        if match.group("comment") is not None:
            line = text.count("\n", 0, match.start()) + 1
            comments.append((line, match.group("comment")))
        if token[0] in "\"'R":
            return '""' + "\n" * token.count("\n")
        return "\n" * token.count("\n")

    return _TOKEN.sub(blank, text), comments


def matches(tree, paths, pattern, message):
    """A finding for each place in the code (not in comments or strings) where `pattern` stands."""
    regex = re.compile(pattern)
    for path in paths:
        code = tree.code(path)
        for match in regex.finditer(code):
            yield Finding(path, code.count("\n", 0, match.start()) + 1,
                          message.format(match.group(0).strip()))


def within(path, homes):
    """Whether a path is one of `homes`, which are files or folders with a final slash."""
    return any(path == home or (home.endswith("/") and path.startswith(home)) for home in homes)
