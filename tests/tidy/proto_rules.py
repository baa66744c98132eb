"""Rules about the messages: each is documented where it is defined."""

import re

from source_tree import Finding

import proto_text


def _ours(tree):
    return [p for p in tree.select({".proto"}, "proto/lockstep/")]


def proto_comments(tree):
    """Every message, field, enum, value and rpc has a comment. Fields that stand together without
    an empty line may share the one above the first; what an rpc takes and returns is explained
    there. The zero value of an enum needs none."""
    for path in _ours(tree):
        entries = proto_text.parse(tree.text(path))
        explained = {word for e in entries if e.kind == "rpc" and e.comment
                     for word in re.findall(r"\w+", e.type)}
        for entry in entries:
            is_zero = entry.kind == "value" and entry.name.endswith("_UNSPECIFIED")
            is_call = entry.kind == "message" and entry.name in explained
            if not (entry.comment or is_zero or is_call):
                yield Finding(path, entry.line, f"{entry.kind} {entry.name} has no comment")


def enum_zero(tree):
    """The value 0 of an enum is X_UNSPECIFIED, so that a field left out is seen as such."""
    for path in _ours(tree):
        for entry in proto_text.parse(tree.text(path)):
            if entry.kind == "value" and entry.number == 0:
                words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", entry.scope.split(".")[-1]).upper()
                if entry.name != words + "_UNSPECIFIED":
                    yield Finding(path, entry.line, f"0 is {words}_UNSPECIFIED")


RULES = (proto_comments, enum_zero)
