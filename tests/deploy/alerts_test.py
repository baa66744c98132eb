#!/usr/bin/env python3
"""Each alert of deploy/monitoring is provoked in a cluster of real processes, which a real
Prometheus scrapes; a real Alertmanager is asked what fires, and what has ended again.

Rules and expressions are those that are deployed, with every minute made a second and every
hour a minute. Usage:

    ctest --test-dir build/release -R deploy_alerts      (some five minutes), or
    tests/deploy/alerts_test.py PATH_OF_LOCKSTEP [unittest arguments]
"""

import contextlib
import ctypes
import json
import os
import pathlib
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
import unittest

import yaml

import processes
import records
import stubs
from members import Members
from processes import Alertmanager, Prometheus
from strange_worker import StrangeWorker

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LOCKSTEP = os.path.abspath(sys.argv.pop(1))
RULES = [ROOT / "deploy" / "monitoring" / name for name in ("recording.yaml", "alerts.yaml")]
# Only ends a test that hangs. A hung engine takes 60 s of it, the longest `for` 15 s.
PATIENCE_SECONDS = 120
# Between starts of a process, so that each of them is scraped.
LIFE_SECONDS = 1
# Of processor time, 10 ms each, until the busiest thread is known.
TICKS_TO_TELL = 10
PTRACE_CONT, PTRACE_SEIZE, PTRACE_INTERRUPT = 7, 0x4206, 0x4207
WAIT_FOR_ANY_THREAD = 0x40000000


def why_not():
    """A reason to skip, or None."""
    for tool in ("prometheus", "prometheus-alertmanager"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    return stubs.why_no_stubs()


def faster(text):
    """Rules with every minute made a second, and every hour a minute."""
    for slow, fast in ("ms", "hm"):
        text = re.sub(rf"^( +for: \d+){slow}$", rf"\1{fast}", text, flags=re.M)
        text = re.sub(rf"\[(\d+){slow}\]", rf"[\1{fast}]", text)
    return text


def ptrace(request, thread):
    if ctypes.CDLL(None, use_errno=True).ptrace(request, thread, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")


def busiest_thread(pid):
    """The one that uses most of the processor now: of a worker with one thread, its engine's."""
    def used():
        fields = {int(task.name): (task / "stat").read_text().rpartition(")")[2].split()
                  for task in pathlib.Path(f"/proc/{pid}/task").iterdir()}
        return {thread: int(one[11]) + int(one[12]) for thread, one in fields.items()}

    before = used()
    while True:
        now = used()
        thread = max(now, key=lambda one: now[one] - before.get(one, 0))
        if now[thread] - before.get(thread, 0) >= TICKS_TO_TELL:
            return thread


def stop_in_own_code(pid, thread):
    """Not in a system call, such as one of gRPC's, whose locks it would hold for all others."""
    ptrace(PTRACE_SEIZE, thread)
    while True:
        ptrace(PTRACE_INTERRUPT, thread)
        os.waitpid(thread, WAIT_FOR_ANY_THREAD)
        if pathlib.Path(f"/proc/{pid}/task/{thread}/syscall").read_text().startswith("-1 "):
            return
        ptrace(PTRACE_CONT, thread)


class Cluster:
    """The cluster, and clients of it."""

    def __init__(self, members, targets):
        self.members, self.targets = members, targets
        self.rollout, services = stubs.load("rollout")
        self._grpc = sys.modules["grpc"]
        self._channel = self._grpc.insecure_channel(members.gateway.address)
        self.stub = services.RolloutServiceStub(self._channel)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._channel.close()

    def ask(self, n=1, tokens=20, seconds=PATIENCE_SECONDS):
        """The future of a request."""
        request = self.rollout.GenerateRequest(n=n, seed=7)
        request.prompt_ids.ids.extend([1, 2, 3])
        request.sampling.temperature = 1
        request.stop.max_new_tokens = tokens
        request.stop.ignore_eos = True
        return self.stub.Generate.future(request, timeout=seconds)

    def score(self, seconds):
        request = self.rollout.ScoreRequest()
        request.ids.extend([1, 2, 3])
        return self.stub.Score.future(request, timeout=seconds)

    @contextlib.contextmanager
    def asking(self, ask=None, **what):
        """One request after the other, whatever becomes of them."""
        ask = ask or self.ask
        stop = threading.Event()

        def loop():
            while not stop.is_set():
                ask(**what).exception()
                stop.wait(0.05)

        thread = threading.Thread(target=loop)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def wait_until_it_answers(self):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.ask().exception() is not None:
            if time.monotonic() > deadline:
                raise AssertionError("the cluster does not recover")

    # What provokes alerts, and at its end takes the cause away.

    @contextlib.contextmanager
    def a_pause_with_a_long_queue(self):
        self.stub.Pause(self.rollout.PauseRequest(), timeout=10)
        waiting = [self.ask(n=64) for _ in range(16)]
        try:
            yield
        finally:
            for one in waiting:
                one.cancel()
            self.stub.Resume(self.rollout.ResumeRequest(), timeout=10)

    @contextlib.contextmanager
    def a_worker_of_another_contract(self):
        self.members.stranger.start()
        with self.targets.also(self.members.stranger.metrics):
            try:
                yield
            finally:
                self.members.stranger.kill()

    @contextlib.contextmanager
    def a_cut_without_a_ticket(self):
        with self.strange_worker() as worker:
            worker.report_cut_without_ticket()
            yield

    @contextlib.contextmanager
    def a_position_that_comes_twice(self):
        def twice(worker, start):
            yield worker.frame(start, 5)
            yield worker.frame(start, 6)

        with self.alone(twice), self.asking():
            yield

    @contextlib.contextmanager
    def a_sequence_that_ends_workers(self):
        def die(worker, start):
            worker.dying.set()
            yield from ()

        with self.alone(die):
            self.ask().exception()
            yield

    @contextlib.contextmanager
    def a_worker_that_leaves_for_wrong_bits(self):
        with self.strange_worker() as worker:
            worker.leave_for("WORKER_FAULT_BITS")
            yield

    @contextlib.contextmanager
    def workers_that_fail_again_and_again(self):
        for _ in range(3):
            with self.strange_worker() as worker:
                worker.leave_for("WORKER_FAULT_ENGINE")
        yield

    @contextlib.contextmanager
    def a_process_that_starts_again_and_again(self):
        for _ in range(3):
            self.members.guarded.kill()
            self.members.guarded.start().wait_for_metrics()
            threading.Event().wait(LIFE_SECONDS)
        yield

    @contextlib.contextmanager
    def callers_that_speak_no_tls(self):
        stop = threading.Event()

        def loop():
            host, port = self.members.guarded.address.split(":")
            while not stop.wait(0.1):
                with socket.create_connection((host, int(port)), timeout=5) as one:
                    one.sendall(b"GET / HTTP/1.1\r\n\r\n")

        thread = threading.Thread(target=loop)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    @contextlib.contextmanager
    def requests_without_the_time_to_answer(self):
        # A worker takes them and says nothing. Other than an answer, a score has no part to return.
        with self.alone(lambda worker, start: ()), self.asking(self.score, seconds=0.3):
            yield

    @contextlib.contextmanager
    def a_gateway_that_knows_no_model(self):
        # Started anew while there is nobody to tell it.
        with self.without(self.members.scheduler):
            self.members.gateway.kill()
            self.members.gateway.start()
            yield

    @contextlib.contextmanager
    def no_target(self):
        with self.targets.none():
            yield

    @contextlib.contextmanager
    def no_router(self):
        with self.without(self.members.router):
            yield

    @contextlib.contextmanager
    def no_scheduler(self):
        with self.without(self.members.scheduler):
            yield

    @contextlib.contextmanager
    def no_worker(self):
        with self.without(self.members.worker):
            yield

    @contextlib.contextmanager
    def sequences_that_never_end(self):
        with self.alone(lambda worker, start: (), kv_blocks=32):
            waiting = self.ask(n=256)
            try:
                yield
            finally:
                waiting.cancel()

    @contextlib.contextmanager
    def an_engine_that_stands_still(self):
        # Long enough to be seen on a busy machine. A gateway may refuse what comes right after the
        # last scene.
        running = self.ask(n=32, tokens=2000)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.members.worker.metric("lockstep_worker_sequences_running") == 0:
            if time.monotonic() > deadline:
                raise AssertionError("it never runs")
            if running.done():
                running = self.ask(n=32, tokens=2000)
        thread = busiest_thread(self.members.worker.child.pid)
        stop_in_own_code(self.members.worker.child.pid, thread)
        try:
            yield
        finally:
            running.cancel()
            # The process ends with it, by itself; but not where the thread was stopped with a lock
            # that those need who would notice.
            waiter = threading.Thread(target=os.waitpid, args=(thread, WAIT_FOR_ANY_THREAD),
                                      daemon=True)
            waiter.start()
            waiter.join(PATIENCE_SECONDS)
            if waiter.is_alive():
                self.members.worker.kill()
                raise AssertionError("the worker whose engine stands still does not end")
            self.members.worker.child.wait(PATIENCE_SECONDS)
            self.members.worker.start()

    @contextlib.contextmanager
    def more_sequences_than_kv(self):
        with self.asking(n=16, tokens=400):
            yield

    @contextlib.contextmanager
    def a_certificate_that_ends_soon(self):
        self.members.certify_guarded(days=1)
        try:
            yield
        finally:
            self.members.certify_guarded(days=30)

    @contextlib.contextmanager
    def without(self, member):
        member.kill()
        try:
            yield
        finally:
            member.start()

    def strange_worker(self, **what):
        return StrangeWorker(self.members.scheduler.address, "members", **what)

    @contextlib.contextmanager
    def alone(self, on_start, **what):
        """A strange worker takes the place of the honest one."""
        with self.strange_worker(on_start=on_start, **what):
            self.members.worker.end()
            try:
                yield
            finally:
                self.members.worker.start()


# Alerts, and what of a Cluster provokes them together.
SCENES = (
    (("LockstepPaused", "LockstepQueueLong"), Cluster.a_pause_with_a_long_queue),
    (("LockstepRegistrationRefused", "LockstepNotReady"), Cluster.a_worker_of_another_contract),
    (("LockstepCertificateEnds", "LockstepCertificateEndsToday"),
     Cluster.a_certificate_that_ends_soon),
    (("LockstepAccessRefused",), Cluster.callers_that_speak_no_tls),
    (("LockstepRestartsOften",), Cluster.a_process_that_starts_again_and_again),
    (("LockstepPlanViolation",), Cluster.a_cut_without_a_ticket),
    (("LockstepBitMismatch", "LockstepErrors"), Cluster.a_position_that_comes_twice),
    (("LockstepAuditMismatch",), Cluster.a_worker_that_leaves_for_wrong_bits),
    (("LockstepWorkersFailOften",), Cluster.workers_that_fail_again_and_again),
    (("LockstepQuarantined",), Cluster.a_sequence_that_ends_workers),
    (("LockstepDeadlines",), Cluster.requests_without_the_time_to_answer),
    (("LockstepGone",), Cluster.no_target),
    (("LockstepRoutersUnreached", "LockstepProcessDown", "LockstepRoleMissing"),
     Cluster.no_router),
    (("LockstepSchedulerUnreached",), Cluster.no_scheduler),
    (("LockstepNoWorkers", "LockstepLeasesExpire"), Cluster.no_worker),
    (("LockstepNoGatewayReady",), Cluster.a_gateway_that_knows_no_model),
    (("LockstepAdmissionStuck",), Cluster.sequences_that_never_end),
    (("LockstepWorkerStuck",), Cluster.an_engine_that_stands_still),
    (("LockstepPreemptionsOften",), Cluster.more_sequences_than_kv),
)


class Targets:
    """What Prometheus scrapes, in a file that it looks at."""

    def __init__(self, path, addresses):
        self.path, self.addresses = path, list(addresses)
        self._write(self.addresses)

    def job(self):
        return {"job_name": "lockstep", "file_sd_configs": [
            {"files": [str(self.path)], "refresh_interval": "1s"}]}

    @contextlib.contextmanager
    def also(self, address):
        self._write([*self.addresses, address])
        try:
            yield
        finally:
            self._write(self.addresses)

    @contextlib.contextmanager
    def none(self):
        self._write([])
        try:
            yield
        finally:
            self._write(self.addresses)

    def _write(self, addresses):
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps([{"targets": addresses}]), encoding="utf-8")
        new.rename(self.path)


class FasterRulesTest(unittest.TestCase):
    def test_they_differ_in_the_unit_of_durations_and_in_nothing_else(self):
        for path in RULES:
            slow = path.read_text(encoding="utf-8")
            for first, second in re.findall(r"\[(.*?)\]|for: (.*)$", slow, re.M):
                self.assertRegex(first + second, r"^\d+[mh]$")
            fast = faster(slow)
            self.assertNotEqual(fast, slow)
            for unit, longer in ("mh", "sm"):
                fast = re.sub(rf"(\[\d+|^ +for: \d+){unit}(?=\]|$)", rf"\1{longer}", fast,
                              flags=re.M)
            self.assertEqual(fast, slow)


@unittest.skipIf(why_not(), why_not())
class AlertsTest(unittest.TestCase):
    def setUp(self):
        processes.Process.life_seconds = 1100
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.rules = []
        for path in RULES:
            self.rules.append(folder / path.name)
            self.rules[-1].write_text(faster(path.read_text(encoding="utf-8")), encoding="utf-8")
        self.targets_file = folder / "targets.json"

    def seconds_from(self, began, condition, what):
        """Seconds from `began` until `condition` holds for what is active."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition(self.alertmanager.active()):
            if time.monotonic() > deadline:
                self.fail(f"{what}; active: {sorted(self.alertmanager.active())}")
            threading.Event().wait(0.1)
        return round(time.monotonic() - began, 1)

    def test_each_fires_when_provoked_and_ends_with_its_cause(self):
        every = {rule["alert"]: rule.get("for")
                 for group in yaml.safe_load(self.rules[1].read_text())["groups"]
                 for rule in group["rules"]}
        self.assertEqual({name for names, _ in SCENES for name in names}, set(every))
        members = self.enterContext(Members(LOCKSTEP))
        self.alertmanager = self.enterContext(Alertmanager())
        targets = Targets(self.targets_file, [one.metrics for one in members.by_name.values()
                                              if one.name != "stranger"])
        prometheus = self.enterContext(Prometheus(
            rule_files=self.rules, alertmanager=self.alertmanager.address, jobs=[targets.job()]))

        def seen():
            """Everybody was scraped twice."""
            return (prometheus.query("count(count_over_time(up[1m]) > 1)")
                    == {"": len(targets.addresses)})

        prometheus.wait_until(seen)
        cluster = self.enterContext(Cluster(members, targets))
        for names, provoke in SCENES:
            with self.subTest(provoke.__name__):
                cluster.wait_until_it_answers()
                self.seconds_from(time.monotonic(), lambda active: not active,
                                  "before anything is provoked")
                with provoke(cluster):
                    caused = time.monotonic()
                    fired = {name: self.seconds_from(caused, lambda active: name in active,
                                                     f"{name} does not fire") for name in names}
                gone = time.monotonic()
                ended = {name: self.seconds_from(gone, lambda active: name not in active,
                                                 f"{name} does not end") for name in names}
                for name in names:
                    records.measured(name, {
                        "cause": provoke.__name__, "for": every[name],
                        "fired_seconds": fired[name], "ended_seconds": ended[name]})


if __name__ == "__main__":
    records.main()
