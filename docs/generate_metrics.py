#!/usr/bin/env python3
"""Writes docs/metrics.md, the reference of all metrics, from the structs that register them.

Usage: docs/generate_metrics.py [--check]     (--check only says whether the page is current)
"""

import dataclasses
import pathlib
import re

import generated_page

PAGE = "docs/metrics.md"
ROOMS = ("services", "common/service")
SERVICES = ("gateway", "router", "scheduler", "worker", "process")

_HEAD = """# Metrics

Every process serves Prometheus' text format at the address in `metrics_listen`, path `/metrics`.
Counters never go down while a process lives; gauges of work in progress return to 0 when a process
is idle. Every series is present from the start, with all its label values, unless its meaning says
when it is absent. Metrics of `process` are those that each role has.

`code` takes the names of gRPC's status codes in lower case, `ok` to `unauthenticated`. A hit rate
is two counters, hits and lookups, so that it can be taken over any time:

```
  rate(lockstep_worker_prefix_hit_tokens_total[5m])
/ rate(lockstep_worker_prefix_lookup_tokens_total[5m])
```

<!-- Written by docs/generate_metrics.py from the structs that register them. -->
"""


@dataclasses.dataclass
class Metric:
    """One registered family."""

    name: str
    type: str
    label: str
    values: str
    help: str
    path: str


_STRING = r'"(?:\\.|[^"\\])*"'
# member(registry, "name", "help" "more help" [, "label", {"a", "b"} or Function()] …
# and of a metrics::Sparse, whose values come up later: [, {"label", "label"}]
_REGISTERED = re.compile(
    rf'(\w+)\(\s*&?\w*registry\w*,\s*"(lockstep_\w+)",\s*((?:{_STRING}\s*)+)'
    rf'(?:,\s*(?:"(\w+)",\s*(\{{[^}}]*\}}|[\w:]+\(\))|\{{([^}}]*)\}}))?')
_MEMBER = r"\bmetrics::(\w+?)(By<[^;]*>)?>?\s+{}\s*[;{{=(]"


def find_metrics(root):
    """All metrics that the services register."""
    root = pathlib.Path(root)
    found = []
    for path in sorted(path for room in ROOMS for path in (root / room).rglob("*")):
        if path.suffix not in (".h", ".cc"):
            continue
        text = path.read_text(encoding="utf-8")
        header = path.with_suffix(".h")
        members = text + (header.read_text(encoding="utf-8") if header.exists() else "")
        for member, name, words, label, values, sparse in _REGISTERED.findall(text):
            kind = re.search(_MEMBER.format(member), members)
            found.append(Metric(name, kind.group(1).lower() if kind else "",
                                label or ", ".join(_strings(sparse)), _values(values),
                                "".join(_strings(words)),
                                path.relative_to(root).as_posix()))
    return found


def mentioned(text):
    """Metric names of the services that a text mentions, series suffixes included."""
    return set(re.findall(r"\blockstep_(?:%s)_[a-z0-9_]*[a-z0-9]\b" % "|".join(SERVICES), text))


def _strings(text):
    return [s.replace('\\"', '"') for s in re.findall(r'"((?:\\.|[^"\\])*)"', text)]


def _values(text):
    if "StatusCodeLabels" in text:
        return "status codes"
    return ", ".join(f"`{v}`" for v in _strings(text)) or text


def generate(root):
    """The page's text."""
    page = [_HEAD]
    metrics = find_metrics(root)
    for service in SERVICES:
        page.append(f"\n## {service}\n")
        page.append("| metric | type | labels | meaning |\n| --- | --- | --- | --- |")
        for metric in metrics:
            if metric.name.startswith(f"lockstep_{service}_"):
                values = f": {metric.values}" if metric.values else ""
                label = f"`{metric.label}`{values}" if metric.label else ""
                page.append(f"| `{metric.name}` | {metric.type} | {label} | {metric.help} |")
    return "\n".join(page).replace("\n\n\n", "\n\n") + "\n"


if __name__ == "__main__":
    generated_page.main(PAGE, generate)
