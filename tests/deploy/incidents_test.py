#!/usr/bin/env python3
"""What fires in incidents as they go in reality: promtool gets the series that each leaves, with
scrapes 15 s apart and the durations of docs/timeouts.md, and all alerts that fire are compared.

Usage: tests/deploy/incidents_test.py PATH_OF_LOCKSTEP [unittest arguments]     (starts nothing)
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

MONITORING = pathlib.Path(__file__).resolve().parent.parent.parent / "deploy" / "monitoring"
del sys.argv[1]

ROLES = {"g": "gateway", "r": "router", "s": "scheduler", "v": "worker", "w": "worker"}


def of(instance, name, **labels):
    words = {"namespace": "n", "job": "lockstep", "instance": instance, **labels}
    return name + "{" + ", ".join(f'{key}="{value}"' for key, value in words.items()) + "}"


def healthy():
    """Series of a cluster with work, for an hour."""
    series = {of("g", "lockstep_gateway_routers_connected"): "1x240",
              of("g", "lockstep_gateway_requests_total", code="ok"): "0+9x240",
              of("r", "lockstep_router_scheduler_connected"): "1x240",
              of("s", "lockstep_scheduler_workers"): "2x240",
              of("s", "lockstep_scheduler_queued_sequences"): "0x240",
              of("s", "lockstep_scheduler_paused"): "0x240",
              of("s", "lockstep_scheduler_admissions_total"): "0+9x240",
              of("s", "lockstep_scheduler_leases_ended_total", reason="expired"): "0x240",
              of("s", "lockstep_scheduler_leases_ended_total", reason="failed"): "0x240"}
    for instance, role in ROLES.items():
        series[of(instance, "up")] = "1x240"
        series[of(instance, "lockstep_process_ready")] = "1x240"
        series[of(instance, "lockstep_process_start_seconds")] = "1000x240"
        if role == "worker":
            series[of(instance, "lockstep_worker_sequences_running")] = "3x240"
            series[of(instance, "lockstep_worker_generated_tokens_total")] = "0+900x240"
            series[of(instance, "lockstep_worker_sequences_ended_total")] = "0+9x240"
            series[of(instance, "lockstep_worker_preemptions_total")] = "0x240"
    return series


def vanish(series, *instances, but=()):
    """What these showed is stale after 10 minutes."""
    for name, values in list(series.items()):
        if any(f'instance="{one}"' in name for one in instances) and name not in but:
            series[name] = f"{values.split('x')[0]}x40 stale"


def elsewhere(series, namespace):
    """The same of a cluster in another namespace."""
    return {name.replace('namespace="n"', f'namespace="{namespace}"'): values
            for name, values in series.items()}


def lives(values, alive, away, missed="stale _x{}"):
    """Of a process that ends again and again for an hour: `alive` scrapes, each life with the next
    of `values`, then `away` scrapes that miss it, which make its series stale."""
    return " ".join(f"{values[i % len(values)]}x{alive - 1} {missed.format(away - 1)}"
                    for i in range(240 // (alive + away) + 1))


@unittest.skipUnless(shutil.which("promtool"), "promtool is not installed")
class IncidentsTest(unittest.TestCase):
    def check(self, series, expected, interval="15s"):
        """`expected`: {time: names of all alerts that fire then}."""
        tests = [{"interval": interval, "input_series": [
            {"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [{
                "expr": 'group by (alertname) (ALERTS{alertstate="firing"})', "eval_time": at,
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1}
                                for name in names]} for at, names in expected.items()]}]
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            json.dump({"rule_files": [str(MONITORING / name) for name in
                                      ("recording.yaml", "alerts.yaml")],
                       "evaluation_interval": "15s", "tests": tests}, file)
            file.flush()
            done = subprocess.run(["promtool", "test", "rules", file.name], capture_output=True,
                                  text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_nothing_fires_while_all_is_well(self):
        self.check(healthy(), {"5m": [], "30m": [], "55m": []})

    def test_an_engine_that_hangs_is_known_when_its_process_has_ended(self):
        # Its lease is over after 3 s; it stands still for 60 s, says so, ends, and is back soon.
        series = healthy()
        series[of("w", "lockstep_worker_generated_tokens_total")] = (
            "0+900x40 36000x4 stale _ 0+900x190")
        series[of("w", "lockstep_process_start_seconds")] = "1000x44 stale _ 1665x190"
        series[of("w", "lockstep_process_ready")] = "1x40 0x4 stale _ 1x190"
        series[of("w", "up")] = "1x44 0 0 1x190"
        series[of("s", "lockstep_scheduler_leases_ended_total", reason="expired")] = "0x40 1x200"
        series[of("s", "lockstep_scheduler_leases_ended_total", reason="failed")] = "0x44 1x196"
        self.check(series, {"9m": [], "10m45s": ["LockstepLeasesExpire"],
                            "11m30s": ["LockstepLeasesExpire", "LockstepWorkerStuck"],
                            "20m": ["LockstepLeasesExpire", "LockstepWorkerStuck"], "30m": []})

    def test_engines_that_hang_again_and_again_wake_somebody(self):
        series = healthy()
        series[of("s", "lockstep_scheduler_leases_ended_total", reason="failed")] = (
            "0x40 1x20 2x20 3x160")
        self.check(series, {"16m": ["LockstepWorkerStuck"],
                            "21m": ["LockstepWorkerStuck", "LockstepWorkersFailOften"], "50m": []})

    def test_a_process_that_starts_again_and_again_wakes_somebody(self):
        # As a kubelet does it, with pauses that double: 10 s, 20 s, 40 s.
        series = healthy()
        series[of("w", "lockstep_process_start_seconds")] = (
            "1000x40 stale 1615 stale _ 1660 stale _ _ 1720x190")
        series[of("w", "up")] = "1x40 0 1 0 0 1 0 0 0 1x190"
        self.check(series, {"9m": [], "13m": ["LockstepRestartsOften"], "40m": []})

    def test_a_process_that_dies_as_often_as_a_kubelet_lets_it_wakes_somebody(self):
        # It lives for one minute or for four, and is started again 5 minutes later.
        for alive in (4, 16):
            for ready, expected in ((1, ["LockstepRestartsOften"]),
                                    (0, ["LockstepNotReady", "LockstepRestartsOften"])):
                with self.subTest(alive=alive, ready=ready):
                    series = healthy()
                    series[of("w", "lockstep_process_start_seconds")] = lives(
                        range(1000, 1100), alive, 20)
                    series[of("w", "lockstep_process_ready")] = lives([ready], alive, 20)
                    series[of("w", "up")] = lives([1], alive, 20, "0x{}")
                    self.check(series, {"53m": ["LockstepProcessDown", *expected],
                                        "54m": expected})

    def test_a_start_that_the_probe_ends_again_and_again_is_seen(self):
        # A worker that does not get ready in the 10 minutes of its startup probe.
        series = healthy()
        series[of("w", "lockstep_process_start_seconds")] = lives(range(1000, 1100), 39, 1)
        series[of("w", "lockstep_process_ready")] = lives([0], 39, 1)
        self.check(series, {"10m": [], "30m": ["LockstepNotReady"],
                            "55m": ["LockstepNotReady", "LockstepRestartsOften"]})

    def test_a_worker_that_is_refused_once_is_no_fault(self):
        series = healthy()
        series[of("s", "lockstep_scheduler_registrations_refused_total")] = "0x40 1x200"
        self.check(series, {"11m": [], "13m": [], "15m": []})

    def test_two_failures_of_hardly_any_requests_wake_nobody(self):
        series = healthy()
        series[of("g", "lockstep_gateway_requests_total", code="ok")] = "0x240"
        series[of("g", "lockstep_gateway_requests_total", code="unavailable")] = "0x40 1x15 2x184"
        self.check(series, {f"{minute}m": [] for minute in range(10, 24)})
        # One a minute is all that is asked, and fails.
        series[of("g", "lockstep_gateway_requests_total", code="unavailable")] = "0x40 " + " ".join(
            f"{count}x3" for count in range(1, 51))
        self.check(series, {"9m": [], "25m": ["LockstepErrors"]})

    def test_long_answers_that_nobody_ends_for_minutes_are_no_fault(self):
        series = healthy()
        series[of("s", "lockstep_scheduler_queued_sequences")] = "100x240"
        series[of("s", "lockstep_scheduler_admissions_total")] = "0 256x240"
        for worker in "vw":
            series[of(worker, "lockstep_worker_sequences_ended_total")] = "0x240"
            series[of(worker, "lockstep_worker_preemptions_total")] = "0+1x240"
        self.check(series, {"8m": [], "20m": [], "50m": []})

    def test_a_queue_without_a_token_is_a_fault(self):
        series = healthy()
        series[of("s", "lockstep_scheduler_queued_sequences")] = "100x240"
        series[of("s", "lockstep_scheduler_admissions_total")] = "0 256x240"
        for worker in "vw":
            series[of(worker, "lockstep_worker_generated_tokens_total")] = "0+900x40 36000x200"
        self.check(series, {"9m": [], "15m": ["LockstepAdmissionStuck"]})

    def test_a_cluster_that_vanishes_is_missed(self):
        series = healthy()
        vanish(series, *ROLES)
        self.check(series, {"9m": [], "13m": ["LockstepGone"], "50m": ["LockstepGone"]})
        # Nor was it ever there.
        self.check({"up{job=\"other\"}": "1x240"}, {"5m": ["LockstepGone"]})

    def test_a_cluster_that_vanishes_beside_another_one_is_missed(self):
        series = {**healthy(), **elsewhere(healthy(), "m")}
        for name in elsewhere(healthy(), "m"):
            series[name] = f"{series[name].split('x')[0]}x40 stale"
        self.check(series, {"9m": [], "13m": ["LockstepGone"], "50m": ["LockstepGone"]})

    def test_a_role_that_vanishes_is_missed(self):
        for instance in "grs":
            with self.subTest(ROLES[instance]):
                series = healthy()
                vanish(series, instance)
                self.check(series, {"9m": [], "13m": ["LockstepRoleMissing"]})

    def test_workers_lost_together_with_the_scheduler_are_missed(self):
        # A node went with both. The scheduler is elsewhere after half a minute and knows nothing of
        # the worker, whose pod stays listed.
        series = healthy()
        vanish(series, "s", "w", but=[of("w", "up")])
        series[of("w", "up")] = "1x40 0x200"
        series.update({name.replace('instance="s"', 'instance="t"'): "_x42 " + values.split()[0]
                       for name, values in healthy().items() if 'instance="s"' in name})
        series[of("t", "lockstep_scheduler_workers")] = "_x42 1x200"
        self.check(series, {"9m": [], "12m": ["LockstepProcessDown"],
                            "50m": ["LockstepProcessDown"]})

    def test_what_a_move_to_other_weights_fires_is_what_its_silence_names(self):
        page = (MONITORING.parent.parent / "docs" / "operations.md").read_text(encoding="utf-8")
        (silenced,) = re.findall(r"^ +alertname=~'(.*)'$", page, re.M)
        # Green in m: workers load for 20 minutes, no gateway is ready before, routers come late.
        green = elsewhere(healthy(), "m")
        for name in list(green):
            if "process_ready" in name and re.search('instance="[gvw]"', name):
                green[name] = "_x40 0x80 1x119"
            elif "scheduler_workers" in name:
                green[name] = "_x40 0x80 2x119"
            elif 'instance="r"' in name:
                green[name] = "_x60 " + green[name].split("x")[0] + "x179"
            else:
                green[name] = "_x40 " + green[name].split("x")[0] + "x199"
        green[of("g", "lockstep_gateway_routers_connected").replace('"n"', '"m"')] = (
            "_x40 0x20 1x179")
        # Blue, whose gateways end after 10 minutes, and then all that is left of it.
        blue = healthy()
        vanish(blue, "g")
        for name in blue:
            if 'instance="g"' not in name:
                blue[name] = f"{blue[name].split('x')[0]}x80 stale"
        fired = {(True, "13m"): ["LockstepNoWorkers", "LockstepRoleMissing",
                                 "LockstepRoutersUnreached"],
                 (True, "29m"): ["LockstepNoGatewayReady", "LockstepNoWorkers", "LockstepNotReady"],
                 (True, "40m"): [], (False, "15m"): ["LockstepRoleMissing"],
                 (False, "30m"): ["LockstepGone"]}
        for new, series in ((True, {**healthy(), **green}), (False, {**blue, **elsewhere(
                healthy(), "m")})):
            self.check(series, {at: names for (which, at), names in fired.items() if which == new})
        for names in fired.values():
            for name in names:
                self.assertRegex(name, f"^({silenced})$")
        self.assertNotRegex("LockstepBitMismatch LockstepAuditMismatch", silenced)

    def test_one_router_that_is_cut_off_wakes_somebody(self):
        series = healthy()
        series[of("q", "lockstep_router_scheduler_connected")] = "1x40 0x200"
        self.check(series, {"9m": [], "12m": ["LockstepSchedulerUnreached"]})

    def test_requests_that_all_end_at_their_deadlines_wake_somebody(self):
        series = healthy()
        series[of("g", "lockstep_gateway_requests_total", code="ok")] = "0+1x240"
        series[of("g", "lockstep_gateway_requests_total", code="deadline_exceeded")] = (
            "0x40 0+9x200")
        self.check(series, {"9m": [], "25m": ["LockstepDeadlines"]})

    def test_a_gateway_that_never_gets_ready_is_seen(self):
        series = healthy()
        series[of("g", "lockstep_process_ready")] = "1x40 0x200"
        self.check(series, {"9m": [], "17m": ["LockstepNoGatewayReady"],
                            "30m": ["LockstepNoGatewayReady", "LockstepNotReady"]})

    def test_a_certificate_that_nobody_renews_wakes_somebody_on_its_last_day(self):
        name = of("g", "lockstep_process_certificate_end_seconds", file="certificate")
        for left, expected in ((15 * 86400, []), (10 * 86400, ["LockstepCertificateEnds"]),
                               (20 * 3600, ["LockstepCertificateEnds",
                                            "LockstepCertificateEndsToday"])):
            with self.subTest(left):
                self.check({**healthy(), name: f"{left}x240"}, {"10m": expected})


if __name__ == "__main__":
    unittest.main()
