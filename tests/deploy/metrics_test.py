#!/usr/bin/env python3
"""Metrics of a real cluster: what promtool and Prometheus make of them, and that they tell the
truth over requests that end well and requests that are given up.

Usage: tests/deploy/metrics_test.py PATH_OF_LOCKSTEP [unittest arguments]
"""

import pathlib
import re
import shutil
import subprocess
import sys
import unittest

from processes import LocalCluster, Prometheus

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "docs"))
import generate_metrics  # noqa: E402

LOCKSTEP = sys.argv.pop(1)

# What is in work or held for it. Each is 0 when nothing runs.
WORK_GAUGES = (
    "lockstep_gateway_samples_open", "lockstep_router_sequences",
    "lockstep_scheduler_queued_sequences", "lockstep_scheduler_running_sequences",
    "lockstep_scheduler_kv_blocks_reserved", "lockstep_worker_sequences_running",
    "lockstep_worker_sequences_waiting", "lockstep_worker_kv_blocks_used")

# Here is no TLS, so no certificate ends and no handshake fails, and no normal mode to compare with.
ABSENT_HERE = ("lockstep_process_certificate_end_seconds",
               "lockstep_process_tls_handshakes_failed_total",
               "lockstep_worker_determinism_overhead_measured_seconds",
               "lockstep_worker_determinism_overhead_ratio",
               "lockstep_worker_determinism_overhead_weighted_ratio",
               "lockstep_worker_served_step_seconds_total")


def read(page):
    """({series: value}, {family: type}) of a page in Prometheus' text format."""
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.M))
    series = {name: float(value) for name, value in re.findall(r"^([^#\s]\S*) (\S+)$", page, re.M)}
    return series, types


def family(series):
    return re.sub(r"\{.*", "", series)


def only_goes_up(series, types):
    """Counters, and the parts of histograms."""
    name = family(series)
    return types.get(name) == "counter" or types.get(
        re.sub(r"_(bucket|count|sum)$", "", name)) == "histogram"


class MetricsTest(unittest.TestCase):
    """One cluster, used by all cases."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(LocalCluster(LOCKSTEP))

    def total(self, name):
        """Sum over processes and labels."""
        return sum(value for page in self.cluster.pages().values()
                   for series, value in read(page)[0].items() if family(series) == name)

    def answer(self):
        with self.cluster.generate("--prompt_ids=1,2,3", "--max_new_tokens=20", "--n=4") as client:
            self.assertEqual(client.wait(), 0, client.stdout.read())

    def give_up(self):
        """A client that goes away in the middle of an answer."""
        aborted = 'lockstep_gateway_samples_total{reason="abort"}'

        def aborts():
            """The gateway has counted an abort."""
            return read(self.cluster.pages()["gateway"])[0][aborted]

        before = aborts()
        with self.cluster.generate("--prompt_ids=1,2,3", "--max_new_tokens=4000", "--n=16",
                                   "--ignore_eos", "--stream") as client:
            while "token" not in client.stdout.readline():
                self.assertIsNone(client.poll())
            client.kill()
        self.cluster.wait_until(lambda: aborts() > before)

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed")
    def test_promtool_finds_nothing_to_say(self):
        self.answer()
        for name, page in self.cluster.pages().items():
            done = subprocess.run(["promtool", "check", "metrics"], input=page, text=True,
                                  capture_output=True, check=False)
            self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""), name)

    def test_counters_never_go_down_over_answers_and_aborts(self):
        before = {name: read(page) for name, page in self.cluster.pages().items()}
        checked = 0
        for step in (self.answer, self.give_up, self.answer, self.give_up):
            step()
            after = {name: read(page) for name, page in self.cluster.pages().items()}
            for name, (series, types) in before.items():
                self.assertEqual(set(series) - set(after[name][0]), set(), "series that vanished")
                for one, value in series.items():
                    if only_goes_up(one, types):
                        self.assertGreaterEqual(after[name][0][one], value, one)
                        checked += 1
            before = after
        self.assertGreater(checked, 1000)

    def test_gauges_of_work_return_to_zero(self):
        self.answer()
        self.give_up()
        for gauge in WORK_GAUGES:
            self.cluster.wait_until(lambda: self.total(gauge) == 0)

    def test_hit_rate_is_two_counters(self):
        self.answer()
        hits = self.total("lockstep_worker_prefix_hit_tokens_total")
        self.assertLessEqual(hits, self.total("lockstep_worker_prefix_lookup_tokens_total"))
        self.assertGreater(self.total("lockstep_worker_prefix_lookup_tokens_total"), 0)

    def test_pages_and_the_documentation_name_the_same_metrics(self):
        served = {name: kind for page in self.cluster.pages().values()
                  for name, kind in read(page)[1].items() if name.startswith("lockstep_")}
        documented = {m.name: m.type for m in generate_metrics.find_metrics(ROOT)
                      if m.name not in ABSENT_HERE}
        self.assertEqual(served, documented)

    @unittest.skipUnless(shutil.which("prometheus"), "prometheus is not installed")
    def test_prometheus_scrapes_every_process_and_answers_queries(self):
        self.answer()
        targets = sorted(self.cluster.metrics.values())
        with Prometheus(targets) as prometheus:
            def scraped():
                """Prometheus has scraped every process."""
                return prometheus.query("up == 1").keys() == set(targets)

            prometheus.wait_until(scraped)
            self.assertGreaterEqual(
                sum(prometheus.query("lockstep_worker_generated_tokens_total").values()), 4)
            violations = prometheus.query("lockstep_scheduler_plan_violations_total")
            self.assertEqual(list(violations.values()), [0])
            self.answer()
            self.cluster.wait_until(
                lambda: prometheus.query("rate(lockstep_worker_steps_total[10s]) > 0"))


if __name__ == "__main__":
    unittest.main()
