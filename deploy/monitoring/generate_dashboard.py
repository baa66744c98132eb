#!/usr/bin/env python3
"""Writes dashboard.json, the Grafana dashboard, from the table below.

Usage: deploy/monitoring/generate_dashboard.py     (import it in Grafana 9 and later)
"""

import json
import pathlib

PATH = pathlib.Path(__file__).with_name("dashboard.json")
ALL = '{namespace=~"$namespace"}'


def rate(name, by=""):
    return f"sum by ({by}) (rate({name}{ALL}[$__rate_interval]))"


def total(name, by=""):
    return f"sum by ({by}) ({name}{ALL})"


def more(name, by=""):
    """In the time that is shown. A counter that a lost process had does not hide it."""
    return f"sum by ({by}) (increase({name}{ALL}[$__range]))"


def quantile(part, name):
    return f"histogram_quantile({part}, {rate(name + '_bucket', 'le')})"


def latency(name):
    return [(quantile(part, name), f"p{part * 100:g}") for part in (0.5, 0.99)]


# (row, [(title, unit, [(expression, legend)])]).
ROWS = [
    ("Throughput", [
        ("Tokens", "short", [(rate("lockstep_gateway_generated_tokens_total"), "generated/s"),
                             (rate("lockstep_gateway_prompt_tokens_total"), "prompt/s")]),
        ("Requests", "reqps", [(rate("lockstep_gateway_requests_total", "code"), "{{code}}")]),
        ("Samples", "short", [(rate("lockstep_gateway_samples_total", "reason"),
                               "{{reason}}/s")]),
        ("Tokens by worker", "short", [(rate("lockstep_worker_generated_tokens_total", "instance"),
                                        "{{instance}}")]),
    ]),
    ("Latency by stage", [
        ("Request", "s", latency("lockstep_gateway_request_seconds")),
        ("First token", "s", latency("lockstep_gateway_first_token_seconds")),
        ("Wait for admission", "s", latency("lockstep_scheduler_wait_seconds")),
        ("Wait in the worker", "s", latency("lockstep_worker_queue_seconds")),
        ("Between tokens", "s", latency("lockstep_worker_inter_token_seconds")),
        ("Step", "s", latency("lockstep_worker_step_seconds")),
    ]),
    ("Queue, KV and cache", [
        ("Sequences", "short", [(total("lockstep_scheduler_running_sequences"), "running"),
                                (total("lockstep_scheduler_queued_sequences"), "queued")]),
        ("KV blocks", "short", [(total("lockstep_scheduler_kv_blocks"), "all"),
                                (total("lockstep_worker_kv_blocks_used"), "used"),
                                (total("lockstep_worker_kv_blocks_cached"), "cached"),
                                (total("lockstep_scheduler_kv_blocks_reserved"), "reserved")]),
        ("Prefix cache", "percentunit", [
            (rate("lockstep_worker_prefix_hit_tokens_total") + " / "
             + rate("lockstep_worker_prefix_lookup_tokens_total"), "tokens found")]),
        ("Preemptions", "short", [(rate("lockstep_worker_preemptions_total", "instance"),
                                   "{{instance}}/s")]),
        ("Sequences in a step", "short", latency("lockstep_worker_batch_sequences")),
    ]),
    ("Determinism", [
        ("Bits that differed (must stay 0)", "short", [
            (more("lockstep_router_bit_mismatches_total"), "router"),
            (more("lockstep_gateway_bit_mismatches_total"), "gateway")]),
        ("Plans outside their cuts (must stay 0)", "short", [
            (more("lockstep_scheduler_plan_violations_total"), "violations")]),
        ("Prefill chunks audited", "short", [(rate("lockstep_scheduler_cuts_total"), "chunks/s")]),
        ("Time of a step over normal mode's", "short", [
            (f"lockstep:determinism_overhead:ratio1h{ALL}", "all that was served"),
            (f"avg by (phase, batch) (lockstep_worker_determinism_overhead_ratio{ALL})",
             "{{phase}} up to {{batch}}")]),
        ("Time given to shadows", "percentunit", [
            (rate("lockstep_worker_shadow_seconds_total", "instance"), "{{instance}}")]),
        ("Live audit", "short", [(rate("lockstep_worker_audit_rows_total"), "rows/s"),
                                 (more("lockstep_worker_audit_mismatches_total"),
                                  "mismatches")]),
    ]),
    ("Failures", [
        ("Processes", "short", [(total("lockstep_scheduler_workers"), "workers with a lease"),
                                (total("lockstep_scheduler_workers_draining"), "draining"),
                                (total("lockstep_process_ready"), "of all roles, ready"),
                                (f"count(lockstep_process_ready{ALL})", "of all roles")]),
        ("Resumptions", "short", [(rate("lockstep_router_resumptions_total", "cause"),
                                   "{{cause}}/s")]),
        ("Leases ended", "short", [(rate("lockstep_scheduler_leases_ended_total", "reason"),
                                    "{{reason}}/s")]),
        ("Refusals", "short", [(rate("lockstep_scheduler_refusals_total", "code"), "{{code}}/s")]),
    ]),
]
COLUMNS, WIDTH, HEIGHT = 24, 6, 7


def panel(number, title, unit, targets, x, y):
    return {"id": number, "type": "timeseries", "title": title,
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT},
            "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
            "targets": [{"refId": chr(ord("A") + i), "expr": expression, "legendFormat": legend}
                        for i, (expression, legend) in enumerate(targets)]}


def dashboard():
    """The dashboard as Grafana's JSON."""
    panels, y = [], 0
    for row, row_panels in ROWS:
        panels.append({"id": len(panels) + 1, "type": "row", "title": row, "collapsed": False,
                       "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1}, "panels": []})
        y += 1
        for i, (title, unit, targets) in enumerate(row_panels):
            place = divmod(i * WIDTH, COLUMNS)
            panels.append(panel(len(panels) + 1, title, unit, targets, place[1],
                                y + place[0] * HEIGHT))
        y += HEIGHT * -(-len(row_panels) * WIDTH // COLUMNS)
    variables = [
        {"name": "datasource", "type": "datasource", "query": "prometheus"},
        {"name": "namespace", "type": "query", "includeAll": True, "allValue": ".*",
         "datasource": {"type": "prometheus", "uid": "${datasource}"},
         "query": "label_values(lockstep_scheduler_workers, namespace)", "refresh": 2,
         "current": {"text": "All", "value": "$__all"}}]
    return {"uid": "lockstep", "title": "lockstep", "schemaVersion": 37, "refresh": "15s",
            "time": {"from": "now-1h", "to": "now"}, "templating": {"list": variables},
            "panels": panels}


if __name__ == "__main__":
    PATH.write_text(json.dumps(dashboard(), indent=1) + "\n", encoding="utf-8")
