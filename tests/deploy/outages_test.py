#!/usr/bin/env python3
"""Overlay `local` as processes while it grows and while it loses a machine: what joins takes part
in the work, what is lost fails no request, and its successors are admitted in time.

Usage: tests/deploy/outages_test.py PATH_OF_LOCKSTEP [unittest arguments]
"""

import importlib
import re
import subprocess
import threading
import time
import unittest

import pod_cases
import pods
import records
import stubs
from pod_cases import GATEWAYS, LOCKSTEP, Load
from processes import fetch

# Within which a pod that has joined has work to do.
USED_SECONDS = 60
# After which Kubernetes starts pods of a machine that is gone on another one: `tolerationSeconds`.
TOLERATION_SECONDS = 10
# A restarted scheduler admits nothing until those it knew have reported; then who waits asks anew.
LEASE_SECONDS = 3
# Peers notice a machine that says nothing by their pings, every 20 s with 10 s to answer.
KEEPALIVE_SECONDS = 30


def since(began):
    return round(time.monotonic() - began, 1)


class OneChannel:
    """A trainer that keeps its channel and asks for one answer after the other."""

    def __init__(self):
        self.rollout, services = stubs.load("rollout")
        grpc = importlib.import_module("grpc")
        self.answers, self.failed, self._error = 0, [], grpc.RpcError
        self._channel = grpc.insecure_channel(GATEWAYS, [("grpc.lb_policy_name", "round_robin")])
        self._generate = services.RolloutServiceStub(self._channel).Generate
        self._stop, self._thread = threading.Event(), threading.Thread(target=self._ask)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        self._channel.close()

    def wait_for_more(self):
        wanted, deadline = self.answers + 10, time.monotonic() + pods.PATIENCE_SECONDS
        while self.answers < wanted:
            if self.failed or time.monotonic() > deadline:
                raise AssertionError(f"no answers: {self.failed}")
            threading.Event().wait(0.02)

    def _ask(self):
        request = self.rollout.GenerateRequest()
        request.prompt_ids.ids.extend([1, 2, 3])
        request.stop.max_new_tokens = 8
        while not self._stop.is_set():
            try:
                self._generate(request, timeout=pods.PATIENCE_SECONDS)
                self.answers += 1
            except self._error as error:
                self.failed.append(str(error))


@unittest.skipIf(stubs.why_no_stubs(), stubs.why_no_stubs())
class OutagesTest(pod_cases.PodsCase):
    def load(self, running):
        return Load({length: {text} for length, text in self.answers_of(running).items()})

    def test_who_joins_under_load_is_used_and_one_client_spreads_over_all_gateways(self):
        self.make("overlays/local")
        for name, count in (("worker", 1), ("gateway", 1)):
            self.cluster.workload(name).body["spec"]["replicas"] = count
        running = self.start_all()
        with self.load(running) as load:
            load.wait_for_more()
            joined = {"worker": [self.start("worker", f"worker-{i}") for i in (1, 2)],
                      "gateway": [self.start("gateway") for _ in range(2)]}
            for pod in sum(joined.values(), []):
                pod.wait_ready()
            ready = time.monotonic()
            for pod in joined["worker"]:
                def works(pod=pod):
                    """A new worker generates tokens."""
                    return self.metric_of([pod], "lockstep_worker_generated_tokens_total") > 0
                self.wait_until(works, USED_SECONDS)
                records.measured(f"{pod.name}_has_work_seconds", since(ready))
            for pod in joined["gateway"]:
                def answers(pod=pod):
                    """A new gateway answers."""
                    return self.metric_of([pod], "lockstep_gateway_requests_total") > 0
                self.wait_until(answers, USED_SECONDS)
                records.measured(f"{pod.name}_has_work_seconds", since(ready))
            load.wait_for_more()
        load.measured("growth")
        self.assertEqual(load.wrong, [])
        # One client that keeps its connections.
        gateways = running["gateway"] + joined["gateway"]
        before = [self.metric_of([pod], "lockstep_gateway_requests_total") for pod in gateways]
        pods.run(LOCKSTEP, "bench", f"--target={GATEWAYS}", "--streams=6", "--requests=60",
                      "--new_tokens=8", "--repeats=1")
        counts = [self.metric_of([pod], "lockstep_gateway_requests_total") - old
                  for pod, old in zip(gateways, before)]
        records.measured("requests_of_one_client_by_gateway", counts)
        self.assertEqual(len(counts), 3)
        self.assertGreaterEqual(min(counts), 0.2 * sum(counts))
        self.end_all()

    def test_a_client_with_one_channel_uses_gateways_that_have_joined(self):
        self.make("overlays/local")
        for name in ("worker", "gateway"):
            self.cluster.workload(name).body["spec"]["replicas"] = 1
        gateways = self.start_all()["gateway"]
        info = subprocess.run([LOCKSTEP, "info", f"--target={GATEWAYS}"], check=True,
                              capture_output=True, text=True).stdout
        # What `verify` reads from another host.
        (metrics,) = re.findall(r'metrics_address: "(\S+)"', info)
        self.assertIn("lockstep_worker_steps_total", fetch(f"http://{metrics}/metrics"))
        with OneChannel() as client:
            client.wait_for_more()
            gateways += [self.start("gateway") for _ in range(2)]
            for pod in gateways[1:]:
                pod.wait_ready()
            ready = time.monotonic()
            for pod in gateways[1:]:
                def answers(pod=pod):
                    """A new gateway answers the old client."""
                    return self.metric_of([pod], "lockstep_gateway_requests_total") > 0
                self.wait_until(answers, ready + USED_SECONDS - time.monotonic())
                records.measured(f"{pod.name}_used_by_one_channel_seconds", since(ready))
            client.wait_for_more()
        self.assertEqual(client.failed, [])
        records.measured("requests_of_one_channel_by_gateway", [
            self.metric_of([pod], "lockstep_gateway_requests_total") for pod in gateways])
        self.end_all()

    def test_a_lost_machine_fails_no_request_and_its_successors_join_in_time(self):
        self.make("overlays/local")
        running = self.start_all()
        with self.load(running) as load:
            load.wait_for_more()
            (scheduler,), worker = running["scheduler"], running["worker"][0]
            # Streams to routers were dealt by chance; the one with more work has some for sure.
            router = max(running["router"],
                         key=lambda pod: self.metric_of([pod], "lockstep_router_opened_total"))
            lost = time.monotonic()
            for pod in (scheduler, router, worker):
                pod.lose()
            self.pause(TOLERATION_SECONDS)
            started = time.monotonic()
            successors = [self.start("scheduler"), self.start("router"),
                          self.start("worker", worker.name)]
            for pod in successors:
                pod.wait_ready()
            patience = started + LEASE_SECONDS + KEEPALIVE_SECONDS + USED_SECONDS
            # Gateways that had found another router stay there, so the new one may stay idle.
            for pod, metric in ((successors[0], "lockstep_scheduler_admissions_total"),
                                (successors[2], "lockstep_worker_generated_tokens_total")):
                def takes_part(pod=pod, metric=metric):
                    """A successor takes part."""
                    return self.metric_of([pod], metric) > 0
                self.wait_until(takes_part, patience - time.monotonic())
                records.measured(f"{pod.workload.name}_works_again_seconds", since(lost))
            load.wait_for_more()
        load.measured("loss")
        self.assertEqual(load.wrong, [])
        moved = self.metric_of(running["gateway"], "lockstep_gateway_resubmissions_total")
        self.assertGreater(moved, 0, "nothing was in work on the lost router")
        self.end_all()


if __name__ == "__main__":
    pod_cases.main()
