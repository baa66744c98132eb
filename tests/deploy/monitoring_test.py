#!/usr/bin/env python3
"""Rules, alerts and the dashboard: promtool's opinion, each alert provoked and ended, and every
expression answered by a real Prometheus over a real cluster.

Usage: tests/deploy/monitoring_test.py PATH_OF_LOCKSTEP [unittest arguments]
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import yaml

from processes import LocalCluster, Prometheus

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MONITORING = ROOT / "deploy" / "monitoring"
sys.path += [str(ROOT / "docs"), str(MONITORING)]
import generate_dashboard  # noqa: E402
import generate_metrics  # noqa: E402
import make_rules  # noqa: E402

LOCKSTEP = sys.argv.pop(1)
RULES = [MONITORING / "recording.yaml", MONITORING / "alerts.yaml"]

# What provokes each alert: {series: values, one each 15 s}, quiet at first, provoked at 24 minutes,
# quiet again at 44; the labels that the alert then has, and its summary.
NS = 'namespace="n"'
GW = f'{NS}, job="lockstep", instance="g"'
WK = f'{NS}, job="lockstep", instance="w"'
RT = f'{NS}, job="lockstep", instance="r"'
SC = f'{NS}, job="lockstep", instance="s"'
JUMP, HIGH, LOW = "0x80 1x100", "0x20 1x80 0x80", "1x20 0x80 1x80"
PROVOKED = {
    "LockstepBitMismatch": (
        {f"lockstep_gateway_bit_mismatches_total{{{GW}}}": JUMP,
         f"lockstep_router_bit_mismatches_total{{{NS}}}": "0x180"},
        {"namespace": "n"}, "Two attempts at one position had different bits"),
    "LockstepAuditMismatch": (
        {f'lockstep_scheduler_leases_ended_total{{{NS}, reason="wrong_bits"}}': JUMP},
        {"namespace": "n"}, "A worker computed other bits than it has to, and has left"),
    "LockstepPlanViolation": (
        {f"lockstep_scheduler_plan_violations_total{{{NS}}}": JUMP},
        {"namespace": "n"}, "A worker cut prefill outside its plan"),
    "LockstepGone": (
        {f"up{{{GW}}}": "1x20 stale _x79 1x80",
         'up{namespace="m", job="lockstep", instance="g"}': "1x180"},
        {"namespace": "n"}, "Prometheus finds no process of lockstep in n"),
    "LockstepRoleMissing": (
        {f"up{{{WK}}}": "1x180",
         f"lockstep_gateway_routers_connected{{{NS}}}": "1x180",
         f"lockstep_router_scheduler_connected{{{NS}}}": "1x180",
         f"lockstep_scheduler_workers{{{NS}}}": "2x20 stale _x79 2x80",
         f"lockstep_worker_sequences_running{{{NS}}}": "1x180"},
        {"namespace": "n", "role": "scheduler"}, "No scheduler answers Prometheus"),
    "LockstepProcessDown": (
        {f"up{{{WK}}}": LOW},
        {"namespace": "n", "instance": "w", "job": "lockstep"}, "w does not answer Prometheus"),
    "LockstepNotReady": (
        {f"lockstep_process_ready{{{GW}}}": LOW},
        {"namespace": "n", "instance": "g", "job": "lockstep"}, "g runs, and takes no work"),
    "LockstepNoGatewayReady": (
        {f"lockstep_process_ready{{{GW}}}": LOW,
         f"lockstep_process_ready{{{WK}}}": "1x180",
         f"lockstep_gateway_routers_connected{{{GW}}}": "1x180"},
        {"namespace": "n"}, "Gateways run, and none of them takes requests"),
    "LockstepRestartsOften": (
        {f"lockstep_process_start_seconds{{{WK}}}": "1x60 2x12 3x12 4x95"},
        {"namespace": "n", "instance": "w", "job": "lockstep"},
        "w ends and starts again and again"),
    "LockstepNoWorkers": (
        {f"lockstep_scheduler_workers{{{NS}}}": LOW},
        {"namespace": "n"}, "No worker has a lease, so nothing is served"),
    "LockstepSchedulerUnreached": (
        {f"lockstep_router_scheduler_connected{{{RT}}}": LOW,
         f'lockstep_router_scheduler_connected{{{NS}, job="lockstep", instance="q"}}': "1x180"},
        {"namespace": "n", "instance": "r", "job": "lockstep"},
        "Router r does not reach the scheduler"),
    "LockstepRoutersUnreached": (
        {f"lockstep_gateway_routers_connected{{{GW}}}": LOW},
        {"namespace": "n", "instance": "g", "job": "lockstep"}, "Gateway g reaches no router"),
    "LockstepLeasesExpire": (
        {f'lockstep_scheduler_leases_ended_total{{{NS}, reason="expired"}}': JUMP,
         f'lockstep_scheduler_leases_ended_total{{{NS}, reason="left"}}': "0+1x180"},
        {"namespace": "n"}, "A worker was lost"),
    "LockstepRegistrationRefused": (
        {f"lockstep_scheduler_registrations_refused_total{{{SC}}}": "0x20 0+1x80 80x80"},
        {"namespace": "n"}, "A worker asks to join again and again, and is refused"),
    "LockstepWorkerStuck": (
        {f'lockstep_scheduler_leases_ended_total{{{NS}, reason="failed"}}': JUMP},
        {"namespace": "n"}, "A worker's engine hung or failed, and the worker has left"),
    "LockstepWorkersFailOften": (
        {f'lockstep_scheduler_leases_ended_total{{{SC}, reason="failed"}}': "0x80 1x3 2x3 3x93"},
        {"namespace": "n"}, "Workers fail again and again"),
    "LockstepErrors": (
        {f'lockstep_gateway_requests_total{{{GW}, code="ok"}}': "0+9x180",
         f'lockstep_gateway_requests_total{{{GW}, code="invalid_argument"}}': "0+9x180",
         f'lockstep_gateway_requests_total{{{GW}, code="internal"}}': "0x20 0+2x80 160x80"},
        {"namespace": "n"}, "10% of requests fail by the cluster's own fault"),
    "LockstepDeadlines": (
        {f'lockstep_gateway_requests_total{{{GW}, code="ok"}}': "0+1x180",
         f'lockstep_gateway_requests_total{{{GW}, code="deadline_exceeded"}}':
             "0x20 0+4x80 320x80"},
        {"namespace": "n"}, "80% of requests end at a deadline with nothing"),
    "LockstepAccessRefused": (
        {f"lockstep_process_tls_handshakes_failed_total{{{GW}}}": "0x20 0+15x80 1200x80",
         f'lockstep_gateway_requests_total{{{GW}, code="unauthenticated"}}': "0x20 0+15x80 1200x80",
         f'lockstep_gateway_requests_total{{{GW}, code="internal"}}': "0+15x180"},
        {"namespace": "n"}, "2 callers a second prove nothing that counts"),
    "LockstepCertificateEndsToday": (
        {f'lockstep_process_certificate_end_seconds{{{GW}, file="certificate"}}':
             "2000000x20 44640x80 2000000x80"},
        {"namespace": "n", "instance": "g", "job": "lockstep", "file": "certificate"},
        "A certificate (certificate) of g ends in 12h 0m 0s"),
    "LockstepCertificateEnds": (
        {f'lockstep_process_certificate_end_seconds{{{GW}, file="certificate"}}':
             "2000000x20 865440x80 2000000x80",
         f'lockstep_process_certificate_end_seconds{{{GW}, file="authorities"}}': "2000000x180"},
        {"namespace": "n", "instance": "g", "job": "lockstep", "file": "certificate"},
        "A certificate (certificate) of g ends in 10d 0h 0m 0s"),
    "LockstepQuarantined": (
        {f"lockstep_router_quarantined_total{{{NS}}}": JUMP},
        {"namespace": "n"}, "A sequence ended several workers and was given up"),
    "LockstepAdmissionStuck": (
        {f"lockstep_scheduler_queued_sequences{{{NS}}}": "5x180",
         f"lockstep_scheduler_admissions_total{{{NS}}}": "0+9x20 180x80 180+9x80",
         f"lockstep_scheduler_paused{{{NS}}}": "0x180"},
        {"namespace": "n"}, "Sequences wait, none is admitted and no token comes"),
    "LockstepPaused": (
        {f"lockstep_scheduler_paused{{{NS}}}": HIGH},
        {"namespace": "n"}, "Somebody paused admission a quarter of an hour ago"),
    "LockstepQueueLong": (
        {f"lockstep_scheduler_queued_sequences{{{NS}}}": "9x20 4000x80 9x80",
         f"lockstep_scheduler_workers{{{NS}}}": "2x180"},
        {"namespace": "n"}, "2k sequences wait for each worker"),
    "LockstepPreemptionsOften": (
        {f"lockstep_worker_preemptions_total{{{WK}}}": "0x20 0+4x80 320x80",
         f"lockstep_worker_sequences_ended_total{{{WK}}}": "0+16x180"},
        {"namespace": "n"}, "25% of sequences lose their KV and run again"),
}

# What has no answer over a cluster on the CPU, which has no normal mode to compare with.
ONLY_ON_A_GPU = {"lockstep:determinism_overhead:ratio1h", "Time of a step over normal mode's/A",
                 "Time of a step over normal mode's/B"}


def rules(path):
    return [rule for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
            for rule in group["rules"]]


def alerts():
    return {rule["alert"]: rule for rule in rules(MONITORING / "alerts.yaml")}


def test_of(name, rule):
    """What promtool should see of one alert: quiet, firing, quiet."""
    series, labels, summary = PROVOKED[name]
    fires = {"exp_labels": {**labels, **rule["labels"]},
             "exp_annotations": {**rule["annotations"], "summary": summary}}
    return {"interval": "15s", "name": name,
            "input_series": [{"series": key, "values": text} for key, text in series.items()],
            "alert_rule_test": [
                {"eval_time": at, "alertname": name, "exp_alerts": expected}
                for at, expected in (("4m", []), ("24m", [fires]), ("44m", []))]}


def promtool(*arguments):
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True,
                          check=False)
    return done.returncode, done.stdout + done.stderr


def run_tests(tests, rule_files):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump({"rule_files": [str(path) for path in rule_files],
                   "evaluation_interval": "15s", "tests": tests}, file)
        file.flush()
        return promtool("test", "rules", file.name)


def expressions():
    """{where it stands: expression} of all rules and panels."""
    found = {rule.get("alert") or rule["record"]: rule["expr"] for path in RULES
             for rule in rules(path)}
    for panel in generate_dashboard.dashboard()["panels"]:
        for target in panel.get("targets", []):
            found[f"{panel['title']}/{target['refId']}"] = target["expr"]
    return found


@unittest.skipUnless(shutil.which("promtool"), "promtool is not installed")
class RulesTest(unittest.TestCase):
    def test_promtool_reads_the_rules_and_finds_a_planted_fault(self):
        code, said = promtool("check", "rules", *RULES)
        self.assertEqual(code, 0, said)
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(RULES[1].read_text(encoding="utf-8").replace("increase(", "increased(", 1))
            file.flush()
            self.assertNotEqual(promtool("check", "rules", file.name)[0], 0)

    def test_each_alert_fires_when_provoked_and_ends(self):
        self.assertEqual(set(alerts()), set(PROVOKED))
        code, said = run_tests([test_of(name, rule) for name, rule in alerts().items()], RULES)
        self.assertEqual(code, 0, said)

    def test_overhead_is_weighted_by_what_was_served_and_measured(self):
        def of(worker, phase, batch):
            return f'{{namespace="n", instance="{worker}", phase="{phase}", batch="{batch}"}}'

        served = "lockstep_worker_served_step_seconds_total"
        ratio = "lockstep_worker_determinism_overhead_ratio"
        # 3 s of every 10 at 1.5, 2 s at 1 and 2 s at 0.5; 1 s that no shadow measured.
        series = {served + of("a", "decode", 64): "0+3x400",
                  ratio + of("a", "decode", 64): "1.5x400",
                  served + of("a", "prefill", 8): "0+2x400",
                  ratio + of("a", "prefill", 8): "1x400",
                  served + of("b", "decode", 64): "0+2x400",
                  ratio + of("b", "decode", 64): "0.5x400",
                  served + of("b", "decode", 1): "0+1x400"}
        name = "lockstep:determinism_overhead:ratio1h"
        code, said = run_tests(
            [{"interval": "10s", "name": name,
              "input_series": [{"series": key, "values": text} for key, text in series.items()],
              "promql_expr_test": [{
                  "expr": f"round({name}, 0.001)", "eval_time": "65m",
                  "exp_samples": [{"labels": '{namespace="n"}', "value": 0.875}]}]}],
            RULES[:1])
        self.assertEqual(code, 0, said)

    def test_an_alert_that_never_fires_would_be_found(self):
        for name, rule in alerts().items():
            with self.subTest(name), tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                deaf = dict(rule, expr=f"({rule['expr']}) and vector(1) > 2")
                json.dump({"groups": [{"name": "deaf", "rules": [deaf]}]}, file)
                file.flush()
                code, said = run_tests([test_of(name, rule)], [RULES[0], file.name])
                self.assertNotEqual(code, 0, said)

    def test_each_alert_has_its_paragraph_among_the_runbooks(self):
        page = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
        self.assertEqual(re.findall(r"^## (Lockstep\w+)$", page, re.M), list(alerts()))
        for name, rule in alerts().items():
            self.assertEqual(rule["annotations"]["runbook_url"],
                             f"{make_rules.PLACEHOLDER}/alerts.md#{name.lower()}")

    def test_rules_for_the_operator_have_their_runbooks_where_he_says(self):
        def made(*flags):
            return yaml.safe_load(subprocess.run(
                [sys.executable, MONITORING / "make_rules.py", *flags], check=True,
                capture_output=True, text=True).stdout)

        rule = made("--runbooks=https://wiki.test/x/", "--namespace=watch")
        self.assertEqual((rule["kind"], rule["metadata"]["namespace"]), ("PrometheusRule", "watch"))
        self.assertEqual(rule["spec"], made("--runbooks=https://wiki.test/x", "--plain"))
        found = {one.get("alert") or one["record"]: one for group in rule["spec"]["groups"]
                 for one in group["rules"]}
        self.assertEqual(set(found), {one.get("alert") or one["record"] for path in RULES
                                      for one in rules(path)})
        for name in alerts():
            self.assertEqual(found[name]["annotations"]["runbook_url"],
                             f"https://wiki.test/x/alerts.md#{name.lower()}")
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            json.dump(rule["spec"], file)
            file.flush()
            code, said = promtool("check", "rules", file.name)
            self.assertEqual(code, 0, said)
        labelled = made("--runbooks=https://wiki.test/x", "--label=release=prom", "--label=a=b=c")
        self.assertEqual(labelled["metadata"]["labels"], {
            **rule["metadata"]["labels"], "release": "prom", "a": "b=c"})
        for bad in ("--runbooks=wiki.test", "--runbooks=docs", "--runbooks=https://wiki.test/x#y",
                    "--label=release"):
            with self.assertRaises(subprocess.CalledProcessError):
                made("--runbooks=https://wiki.test/x", bad)

    def test_expressions_use_metrics_that_exist(self):
        known = {metric.name for metric in generate_metrics.find_metrics(ROOT)}
        known |= {rule["record"] for rule in rules(RULES[0])}
        for where, expression in expressions().items():
            for name in re.findall(r"\block\w*step[:_][\w:]+", expression):
                with self.subTest(where):
                    self.assertIn(re.sub(r"_(bucket|sum|count)$", "", name), known)


@unittest.skipUnless(shutil.which("prometheus"), "prometheus is not installed")
class DashboardTest(unittest.TestCase):
    def test_the_file_is_what_the_script_writes(self):
        self.assertEqual(json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8")),
                         generate_dashboard.dashboard())

    def test_every_expression_is_answered_over_a_real_cluster(self):
        with LocalCluster(LOCKSTEP) as cluster:
            targets = sorted(cluster.metrics.values())
            with Prometheus(targets, rule_files=RULES) as prometheus:
                def silent():
                    """Expressions, but for alerts, without an answer."""
                    found = []
                    for where, expression in expressions().items():
                        asked = expression.replace("$__rate_interval", "30s")
                        asked = asked.replace("$__range", "1m")
                        answer = prometheus.query(asked.replace("$namespace", ".*"))
                        if not answer and where not in {*alerts(), *ONLY_ON_A_GPU}:
                            found.append(where)
                    return found

                def all_answered():
                    """Work ended, was scraped, and the rules were evaluated over it."""
                    with cluster.generate("--prompt_ids=1,2,3", "--max_new_tokens=8",
                                          "--n=4") as client:
                        self.assertEqual(client.wait(), 0, client.stdout.read())
                    return silent() == []

                try:
                    prometheus.wait_until(all_answered)
                except AssertionError as error:
                    raise AssertionError(f"{error}; without an answer: {silent()}") from error
                firing = prometheus.query('ALERTS{alertstate="firing"}')
                self.assertEqual(firing, {})


if __name__ == "__main__":
    unittest.main()
