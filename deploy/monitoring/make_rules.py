#!/usr/bin/env python3
"""Prints rules and alerts with the place where their runbooks are: as a PrometheusRule for the
operator, or as one file of rules for a Prometheus without it.

Usage: deploy/monitoring/make_rules.py --runbooks=https://wiki.example.com/lockstep \\
           [--namespace=lockstep --label=release=NAME | --plain] > rules.yaml  (needs PyYAML)

The page docs/alerts.md has to be readable at that place, as alerts.md.
"""

import argparse
import pathlib
import urllib.parse

import yaml

FOLDER = pathlib.Path(__file__).resolve().parent
FILES = ("recording.yaml", "alerts.yaml")
# What alerts.yaml has in place of it.
PLACEHOLDER = "https://runbooks.example"


def groups(runbooks):
    """All groups of rules; their runbooks are at the URL `runbooks`."""
    found = []
    for name in FILES:
        text = (FOLDER / name).read_text(encoding="utf-8").replace(PLACEHOLDER, runbooks)
        found += yaml.safe_load(text)["groups"]
    return found


def prometheus_rule(runbooks, namespace, labels=()):
    """The object that the operator reads, with more labels as (key, value) for its selector."""
    return {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule",
            "metadata": {"name": "lockstep", "namespace": namespace,
                         "labels": {"app.kubernetes.io/part-of": "lockstep", **dict(labels)}},
            "spec": {"groups": groups(runbooks)}}


def _url(text):
    parts = urllib.parse.urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise argparse.ArgumentTypeError(f"{text!r} is no URL such as https://wiki.example.com/x")
    return text.rstrip("/")


def _label(text):
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is no label such as release=prometheus")
    return key, value


def main():
    parser = argparse.ArgumentParser(description="Prints rules and alerts.")
    parser.add_argument("--runbooks", type=_url, required=True,
                        help="URL of the folder where alerts.md can be read")
    parser.add_argument("--namespace", default="lockstep", help="of the PrometheusRule")
    parser.add_argument("--label", type=_label, action="append", default=[], metavar="KEY=VALUE",
                        help="one more label of the PrometheusRule, for Prometheus' ruleSelector")
    parser.add_argument("--plain", action="store_true", help="a file of rules, no PrometheusRule")
    asked = parser.parse_args()
    made = ({"groups": groups(asked.runbooks)} if asked.plain
            else prometheus_rule(asked.runbooks, asked.namespace, asked.label))
    print(yaml.safe_dump(made, sort_keys=False, width=100), end="")


if __name__ == "__main__":
    main()
