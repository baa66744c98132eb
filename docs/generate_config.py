#!/usr/bin/env python3
"""Writes docs/config.md, the reference of all settings, from the comments of config.proto.

Usage: docs/generate_config.py [--check]     (--check only says whether the page is current)
"""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import generated_page  # noqa: E402
import proto_text  # noqa: E402

PROTO = "proto/lockstep/config/v1/config.proto"
PAGE = "docs/config.md"

_HEAD = """# Settings

One file in text-proto form per process, given with `--config`; `deploy/config` has examples. With
several files each adds to those before it. `${{POD_NAME}}`, `${{POD_NAMESPACE}}` and
`${{POD_IP}}` stand for what the environment says, `$${{` for `${{` itself; comments stay as they
are. A setting left out takes its default. An unknown setting, a number given as 0, or a value out
of range stops the start.

<!-- Written by docs/generate_config.py from {proto}. -->
"""


def generate(root):
    """The page's text."""
    root = pathlib.Path(root)
    page = [_HEAD.format(proto=PROTO)]
    for entry in proto_text.parse((root / PROTO).read_text(encoding="utf-8")):
        if entry.kind in ("message", "enum"):
            page.append(f"\n## {entry.name}\n")
            if entry.comment:
                page.append(f"{entry.comment}\n")
            head = "setting | type" if entry.kind == "message" else "value | number"
            page.append(f"| {head} | meaning |\n| --- | --- | --- |")
        elif entry.kind == "field":
            page.append(f"| `{entry.name}` | {_type(entry.type)} | {_cell(entry.comment)} |")
        elif entry.kind == "value":
            page.append(f"| `{entry.name}` | {entry.number} | {_cell(entry.comment)} |")
    return "\n".join(page).replace("\n\n\n", "\n\n") + "\n"


def _type(text):
    word = text.split()[-1]
    link = f"[{word}](#{word.lower()})" if re.match(r"[A-Z]", word) else word
    return ("list of " if text.startswith("repeated") else "") + link


def _cell(text):
    return text.replace("|", "\\|")


if __name__ == "__main__":
    generated_page.main(PAGE, generate)
