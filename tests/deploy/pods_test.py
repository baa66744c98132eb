#!/usr/bin/env python3
"""The manifests as they are, run as processes: each pod's init containers, command, volumes,
configuration, user, probes and preStop are read from what is rendered. Overlay `local` becomes
ready, answers, and is rolled over under load without a request that fails or a bit that moves;
`base` serves by TLS while its Secrets are replaced.

Usage: tests/deploy/pods_test.py PATH_OF_LOCKSTEP [unittest arguments]
"""

import concurrent.futures
import os
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import manifests
import pods
import secrets_of_roles as secrets
from manifests import KUBERNETES, Cluster, parse, render

LOCKSTEP = os.path.abspath(sys.argv[1])
REASON = manifests.why_not_rendered() or pods.why_no_pods() or secrets.why_no_secrets()
# New tokens of each client's requests: some come and go, one is nearly always in work.
LENGTHS = (100, 300, 1200)


class Load:
    """Clients that ask the same again and again, each by a process and a connection of its own.
    `expected` is the answer to each length."""

    def __init__(self, expected):
        self.answers = 0
        self.wrong = []
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._threads = [threading.Thread(target=self._ask, args=one)
                         for one in expected.items()]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_for_more(self):
        """Until answers came to what was asked from now on."""
        wanted = self.answers + 2 * len(LENGTHS)
        with self._changed:
            if not self._changed.wait_for(lambda: self.answers >= wanted or self.wrong,
                                          timeout=pods.PATIENCE_SECONDS):
                raise AssertionError("no answers")

    def _ask(self, length, expected):
        while not self._stop.is_set():
            code, text = generate(length, flags=[])
            with self._changed:
                self.answers += 1
                if code != 0 or text != expected:
                    self.wrong.append((code, text))
                self._changed.notify_all()


def reach():
    """Flags of a trainer with a token, and no certificate."""
    authority = secrets.authority()
    return [f"--authorities={authority.certificate}", "--server_name=gateway",
            f"--token_file={authority.trainer_token}"]


def generate(length, target="dns:///gateway-all:7100", flags=None):
    """Exit code, and what was said of text, ids, logprobs and receipts of one request by name."""
    done = subprocess.run(
        [LOCKSTEP, "generate", f"--target={target}", *(reach() if flags is None else flags),
         "--prompt_ids=1,2,3",
         f"--max_new_tokens={length}", "--n=4", "--seed=7", "--temperature=1", "--ignore_eos"],
        capture_output=True, text=True, timeout=pods.PATIENCE_SECONDS, check=False)
    # How long it took and where it ran may differ, and each request gets a name of its own.
    said = [line for line in done.stdout.splitlines()
            if not line.startswith(("request ", "  usage "))]
    return done.returncode, "\n".join(said) + (done.stderr if done.returncode else "")


def wait_for_answer(length, target, flags=None):
    """What a gateway says as soon as it has learnt that workers have joined, for which being ready
    does not wait."""
    deadline = time.monotonic() + pods.PATIENCE_SECONDS
    while True:
        code, text = generate(length, target, flags)
        if code == 0:
            return text
        if time.monotonic() > deadline:
            raise AssertionError(text)


@unittest.skipIf(REASON, REASON)
class PodsTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory(prefix="lockstep-pods-",
                                                                    ignore_cleanup_errors=True))
        self.count = 0

    def make(self, rendered):
        """The cluster of a folder with manifests; no pod runs yet."""
        self.cluster = Cluster(parse(render(KUBERNETES / rendered)))
        self.node = self.enterContext(pods.Node(self.cluster, LOCKSTEP, self.folder,
                                                secrets.of_cluster(self.cluster)))

    def start(self, name, pod_name=None):
        workload = self.cluster.workload(name)
        self.count += 1
        return pods.Pod(self.node, workload, pod_name or f"{name}-x{self.count}")

    def start_all(self):
        running = {}
        for workload in self.cluster.workloads():
            ordered = workload.body["kind"] == "StatefulSet"
            running[workload.name] = [
                self.start(workload.name, f"{workload.name}-{i}" if ordered else None)
                for i in range(workload.replicas)]
        for pod in self.node.pods:
            pod.wait_ready()
        return running

    def end(self, pod):
        self.assertEqual(pod.delete(), 0, f"{pod.name}:\n{pod.log.read_text()[-4000:]}")
        self.assertEqual(pod.liveness_failures, 0, pod.name)

    def roll(self, name, running):
        """Replaces each pod in the order of the workload's strategy."""
        body = self.cluster.workload(name).body
        surge = body["spec"].get("strategy", {}).get("rollingUpdate", {}).get("maxSurge", 0)
        for old in running[name]:
            stable = old.name if body["kind"] == "StatefulSet" else None
            if not surge:
                self.end(old)
            new = self.start(name, stable)
            new.wait_ready()
            threading.Event().wait(body["spec"].get("minReadySeconds", 0))
            if surge:
                self.end(old)

    def test_a_rolling_restart_under_load_fails_no_request_and_moves_no_bit(self):
        self.make("overlays/local")
        running = self.start_all()
        answers = [{length: wait_for_answer(length, f"{pod.address}:7100", flags=[])
                    for length in LENGTHS} for pod in running["gateway"]]
        expected = answers[0]
        self.assertEqual(answers, [expected] * len(answers))
        with Load(expected) as load:
            load.wait_for_more()
            for name in ("scheduler", "router", "worker", "gateway"):
                self.roll(name, running)
                load.wait_for_more()
        print(f"{load.answers} answers", file=sys.stderr)
        self.assertEqual([(code, text[-400:]) for code, text in load.wrong], [])
        # All that is left ends in time, whatever the order.
        with concurrent.futures.ThreadPoolExecutor() as pool:
            for done in [pool.submit(self.end, pod) for pod in list(self.node.pods)]:
                done.result()


    def test_base_serves_by_tls_while_its_secrets_are_replaced(self):
        self.make("base")
        running = self.start_all()
        addresses = [f"{pod.address}:7100" for pod in running["gateway"]]
        expected = [wait_for_answer(100, address) for address in addresses]
        self.assertIn("UNAUTHENTICATED", generate(100, flags=reach()[:2])[1])
        # A key of somebody else makes a pod unready, and does not end it.
        (scheduler,) = running["scheduler"]
        own = dict(self.node.secrets)
        foreign = own["scheduler-tls"] | {"tls.key": own["worker-tls"]["tls.key"]}
        self.node.replace_secrets(own | {"scheduler-tls": foreign})
        self.assertFalse(scheduler.healthy("readiness"))
        self.assertTrue(scheduler.healthy("liveness"))
        self.node.replace_secrets(secrets.of_cluster(self.cluster))
        self.assertTrue(scheduler.healthy("readiness"))
        self.assertEqual([wait_for_answer(100, address) for address in addresses], expected)
        # Pods that start now have new certificates, those that run had old ones.
        for name in ("router", "worker"):
            self.roll(name, running)
        self.assertEqual([wait_for_answer(100, address) for address in addresses], expected)


if __name__ == "__main__":
    if REASON is None:
        pods.enter_own_namespaces()
    del sys.argv[1]
    unittest.main()
