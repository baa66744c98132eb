#!/usr/bin/env python3
"""Gateways by TLS that are restarted in turn under load, again and again, with less time to drain
than requests take: no client sees an error, and every answer has the bits of a quiet run.

Usage: tests/deploy/roll_test.py PATH_OF_LOCKSTEP [unittest arguments]
"""

import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import records
import secrets_of_roles as secrets
from processes import PATIENCE_SECONDS, free_ports

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL = ROOT / "deploy" / "demo-model"
LOCKSTEP = sys.argv.pop(1)
ROLLS = 6
# New tokens of each client's requests: some come and go, some outlive a drain.
LENGTHS = (5, 40, 400, 1200, 1200)


class Member:
    """A process of one role by TLS."""

    def __init__(self, folder, role, settings, name=None):
        self.role, self.child = role, None
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        files = folder / f"{role}-secrets"
        if not files.exists():
            files.mkdir()
            secrets.write(files, role)
        tls = " ".join(f'{field}_file: "{files}/tls/{file}"' for field, file in (
            ("certificate", "tls.crt"), ("key", "tls.key"), ("authorities", "ca.crt")))
        self.config = folder / f"{name or role}.textproto"
        self.log = self.config.with_suffix(".log")
        self.config.write_text(
            f'server {{ listen: "{self.address}" cluster_id: "roll" drain_finish_seconds: 0.3'
            f" tls {{ {tls} }} }}\n{settings.format(files=files)}\n", encoding="utf-8")

    def start(self):
        with open(self.log, "ab") as log:
            self.child = subprocess.Popen([LOCKSTEP, self.role, f"--config={self.config}"],
                                          stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while subprocess.run([LOCKSTEP, "health", f"--role={self.role}",
                              f"--config={self.config}"], capture_output=True,
                             check=False).returncode != 0:
            if self.child.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{self.role}:\n{self.log.read_text()[-4000:]}")
        return self

    def end(self):
        """SIGTERM; the exit code, when the drain is over."""
        self.child.send_signal(signal.SIGTERM)
        return self.child.wait(PATIENCE_SECONDS)


@unittest.skipIf(secrets.why_no_secrets(), secrets.why_no_secrets())
class RollTest(unittest.TestCase):
    def setUp(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="lockstep-")))
        scheduler = Member(folder, "scheduler", f'state_file: "{folder}/state"')
        router = Member(folder, "router", f'router_id: "r" scheduler: "{scheduler.address}"')
        worker = Member(folder, "worker", f'worker_id: "w" scheduler: "{scheduler.address}"'
                        f' model: "{MODEL}" threads: 1 kv_bytes: 134217728')
        self.gateways = [
            Member(folder, "gateway", f'routers: "{router.address}" scheduler:'
                   f' "{scheduler.address}" tokens_dir: "{{files}}/tokens"', f"gateway-{i}")
            for i in range(2)]
        for member in (scheduler, router, worker, *self.gateways):
            member.start()
            self.addCleanup(lambda child=member: (child.child.kill(), child.child.wait()))
        self.target = "ipv4:" + ",".join(one.address for one in self.gateways)
        self.samples, self.wrong = [], []  # new tokens of an answer, and how long it took
        self.stop = threading.Event()
        self.changed = threading.Condition()

    def generate(self, length):
        """Exit code, and what was said of text, ids, logprobs and receipts."""
        authority = secrets.authority()
        done = subprocess.run(
            [LOCKSTEP, "generate", f"--target={self.target}", "--server_name=gateway",
             f"--authorities={authority.certificate}", f"--token_file={authority.trainer_token}",
             "--prompt_ids=1,2,3", f"--max_new_tokens={length}", "--n=4", "--seed=7",
             "--ignore_eos"],
            capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
        said = [line for line in done.stdout.splitlines()
                if not line.startswith(("request ", "  usage "))]
        return done.returncode, "\n".join(said) + (done.stderr if done.returncode else "")

    def load(self, length, expected):
        while not self.stop.is_set():
            asked = time.monotonic()
            answer = self.generate(length)
            with self.changed:
                self.samples.append((length, round(time.monotonic() - asked, 2)))
                if answer != expected:
                    self.wrong.append((length, answer[0], answer[1][-400:]))
                self.changed.notify_all()

    def wait_for_more(self):
        with self.changed:
            wanted = len(self.samples) + len(LENGTHS)
            self.assertTrue(self.changed.wait_for(lambda: len(self.samples) >= wanted,
                                                  timeout=PATIENCE_SECONDS), "no answers")

    def test_restarts_in_turn_fail_no_request_and_move_no_bit(self):
        expected = {length: self.generate(length) for length in LENGTHS}
        self.assertEqual({code for code, _ in expected.values()}, {0}, expected)
        clients = [threading.Thread(target=self.load, args=(length, expected[length]))
                   for length in LENGTHS]
        for client in clients:
            client.start()
        try:
            for i in range(ROLLS):
                self.wait_for_more()
                self.assertEqual(self.gateways[i % 2].end(), 0)
                self.gateways[i % 2].start()
        finally:
            self.stop.set()
            for client in clients:
                client.join()
        records.measured("restarts", ROLLS)
        records.measured("answers", len(self.samples))
        records.measured("failed", len(self.wrong))
        records.measured("tokens_took", self.samples)
        self.assertEqual(self.wrong, [])


if __name__ == "__main__":
    records.main()
