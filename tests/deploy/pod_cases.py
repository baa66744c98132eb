"""What tests of pods share: clients that ask, and cases whose pods come from rendered manifests."""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import manifests
import pods
import records
import secrets_of_roles as secrets
from manifests import KUBERNETES, Cluster, parse, render
from processes import fetch

LOCKSTEP = os.path.abspath(sys.argv[1])
REASON = manifests.why_not_rendered() or pods.why_no_pods() or secrets.why_no_secrets()
# Each gateway's address, by the name of a cluster.
GATEWAYS = "dns:///gateway-all:7100"
# New tokens of each client's requests: some come and go, one is nearly always in work.
LENGTHS = (100, 300, 1200)


class Load:
    """Clients that ask the same again and again, each by a process and a connection of its own.
    `expected` has the answers that each length may have."""

    def __init__(self, expected, target=GATEWAYS, flags=()):
        self.samples = []  # of each answer: new tokens, when it came, how long it took, in s
        self.longest_pause = 0.0  # between two answers, whoever got them
        self.wrong = []
        self.expected = expected
        self._target = target
        self._flags = list(flags)
        self._began = self._last = time.monotonic()
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._threads = [threading.Thread(target=self._ask, args=(length,)) for length in expected]

    @property
    def answers(self):
        return len(self.samples)

    def measured(self, name):
        """Keeps what became of it."""
        records.measured(f"{name}_answers", self.answers)
        records.measured(f"{name}_failed", len(self.wrong))
        records.measured(f"{name}_longest_pause_seconds", round(self.longest_pause, 1))
        records.measured(f"{name}_tokens_at_took", self.samples)

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

    def _ask(self, length):
        while not self._stop.is_set():
            expected = self.expected[length]
            asked = time.monotonic()
            code, text = generate(length, self._target, self._flags)
            with self._changed:
                now = time.monotonic()
                self.longest_pause = max(self.longest_pause, now - self._last)
                self._last = now
                self.samples.append((length, round(now - self._began, 2), round(now - asked, 2)))
                if code != 0 or text not in expected:
                    self.wrong.append((code, text[-400:]))
                self._changed.notify_all()


def reach():
    """Flags of a trainer with a token, and no certificate."""
    authority = secrets.authority()
    return [f"--authorities={authority.certificate}", "--server_name=gateway",
            f"--token_file={authority.trainer_token}"]


def generate(length, target=GATEWAYS, flags=None):
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
class PodsCase(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory(prefix="lockstep-pods-",
                                                                    ignore_cleanup_errors=True))
        self.count = 0

    def make(self, rendered):
        """The cluster of a folder with manifests; no pod runs yet."""
        self.cluster = self.read(rendered)
        self.node = self.enterContext(pods.Node(LOCKSTEP, self.folder,
                                                secrets.of_cluster(self.cluster)))
        self.node.apply(self.cluster)

    def read(self, rendered):
        return Cluster(parse(render(KUBERNETES / rendered)))

    def start(self, name, pod_name=None, cluster=None):
        workload = (cluster or self.cluster).workload(name)
        self.count += 1
        return pods.Pod(self.node, workload, pod_name or f"{name}-x{self.count}")

    def start_all(self, cluster=None):
        """{workload: pods, ready} of a cluster."""
        running = {}
        for workload in (cluster or self.cluster).workloads():
            ordered = workload.body["kind"] == "StatefulSet"
            running[workload.name] = [
                self.start(workload.name, f"{workload.name}-{i}" if ordered else None, cluster)
                for i in range(workload.replicas)]
        for pod in sum(running.values(), []):
            pod.wait_ready()
        return running

    def answers_of(self, running):
        """{length: answer}, which all gateways of a cluster without TLS give."""
        first, *others = [{length: wait_for_answer(length, f"{pod.address}:7100", flags=[])
                           for length in LENGTHS} for pod in running["gateway"]]
        self.assertEqual(others, [first] * len(others))
        return first

    def end(self, pod):
        self.assertEqual(pod.delete(), 0, f"{pod.name}:\n{pod.log.read_text()[-4000:]}")
        self.assertEqual(pod.restarts, 0, pod.name)

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

    def metric_of(self, running, name):
        """Sum over pods and labels, as Prometheus would read it from them."""
        pages = [fetch(f"http://{pod.address}:{pod.workload.ports()['metrics']}/metrics")
                 for pod in running]
        return sum(float(value) for page in pages
                   for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.M))

    def wait_until(self, condition, patience=pods.PATIENCE_SECONDS):
        """Asks again and again; returns the seconds until `condition` held."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() > began + patience:
                raise AssertionError(f"not within {patience} s: {condition.__doc__}")
            threading.Event().wait(0.02)
        return time.monotonic() - began

    def pause(self, seconds):
        """As long as a kubelet or its cluster would wait."""
        threading.Event().wait(seconds)

    def end_all(self, running=None):
        """All that is left, or a cluster of it, ends in time, whatever the order."""
        leaving = list(self.node.pods) if running is None else sum(running.values(), [])
        with concurrent.futures.ThreadPoolExecutor() as pool:
            for done in [pool.submit(self.end, pod) for pod in leaving]:
                done.result()


def main():
    if REASON is None:
        pods.enter_own_namespaces()
    del sys.argv[1]
    records.main()
