"""Reads .proto files for their comments: what each message, field, enum, value and rpc is for."""

import dataclasses
import re


@dataclasses.dataclass
class Entry:
    """One definition, in the order of the file."""

    kind: str  # message, enum, service, field, value, rpc
    scope: str  # enclosing message, enum or service; empty at the top
    name: str
    line: int
    comment: str  # one paragraph, as written
    type: str = ""  # of a field, with its label; of an rpc, what it takes and returns
    number: int = -1  # of a field or value
    oneof: str = ""  # the oneof a field is in


_BLOCK = re.compile(r"(message|enum|service|oneof)\s+(\w+)\s*\{\s*(\})?")
_FIELD = re.compile(r"((?:(?:repeated|optional)\s+)?(?:map<[^>]*>|[\w.]+))\s+(\w+)\s*=\s*(\d+)")
_VALUE = re.compile(r"(\w+)\s*=\s*(-?\d+)")
_RPC = re.compile(r"rpc\s+(\w+)\s*(\(.*\))")


def parse(text):
    """All entries of a file. A comment is the block of `//` lines directly above; fields and values
    that stand together without an empty line share the comment above the first of them."""
    entries, blocks, comment, shared = [], [], [], ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if line.startswith("//"):
            comment.append(line[2:].strip())
            continue
        if not line:
            comment, shared = [], ""
            continue
        line, _, trailing = line.partition("//")
        own = " ".join(comment) or trailing.strip()
        comment = []
        block = _BLOCK.match(line)
        if block:
            kind, name = block.group(1), block.group(2)
            if kind != "oneof":
                entries.append(Entry(kind, _scope(blocks), name, number, own))
            if not block.group(3):
                blocks.append((kind, name))
            # The fields of a oneof may be explained by the comment above it.
            shared = own if kind == "oneof" else ""
            continue
        if line.startswith("}"):
            if blocks:
                blocks.pop()
            shared = ""
            continue
        entry = _member(line, blocks, number)
        if entry:
            shared = own or shared
            entry.comment = shared
            entries.append(entry)
    return entries


def _scope(blocks):
    return ".".join(name for kind, name in blocks if kind != "oneof")


def _member(line, blocks, number):
    kind = blocks[-1][0] if blocks else ""
    if kind == "service":
        match = _RPC.match(line)
        return match and Entry("rpc", _scope(blocks), match.group(1), number, "",
                               type=match.group(2))
    if kind == "enum":
        match = _VALUE.match(line)
        return match and Entry("value", _scope(blocks), match.group(1), number, "",
                               number=int(match.group(2)))
    if kind in ("message", "oneof"):
        match = _FIELD.match(line)
        if match and match.group(1) != "reserved":
            return Entry("field", _scope(blocks), match.group(2), number, "",
                         type=match.group(1), number=int(match.group(3)),
                         oneof=blocks[-1][1] if kind == "oneof" else "")
    return None
