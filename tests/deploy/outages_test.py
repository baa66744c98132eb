#!/usr/bin/env python3
"""Overlay `local` as processes while it grows and while it loses a machine: what joins takes part
in the work, what is lost fails no request, and its successors are admitted in time.

Usage: tests/deploy/outages_test.py PATH_OF_LOCKSTEP [unittest arguments]
"""

import time

import pod_cases
import pods
import records
from pod_cases import GATEWAYS, LOCKSTEP, Load

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
