#!/usr/bin/env python3
"""Pictures of the dashboard, from a real cluster under load that loses a worker.

Usage: tests/deploy/pictures_test.py PATH_OF_LOCKSTEP [FOLDER]     (FOLDER keeps the pictures: those
of the documentation are in docs/pictures)
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import processes
from processes import LocalCluster, Prometheus

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "deploy" / "monitoring"))
import draw_panels  # noqa: E402

LOCKSTEP = sys.argv[1]
FOLDER = sys.argv[2] if len(sys.argv) > 2 else None
BYTES_MAX = 100_000
# What shows at least that work was done, and that a worker was lost.
SURELY = {"Tokens", "Requests", "Request", "First token", "Step", "Sequences", "KV blocks",
          "Prefix cache", "Prefill chunks audited", "Leases ended", "Resumptions"}


@unittest.skipUnless(shutil.which("prometheus"), "prometheus is not installed")
@unittest.skipUnless(shutil.which("gnuplot"), "gnuplot is not installed")
class PicturesTest(unittest.TestCase):
    def test_rows_are_drawn_small_and_with_what_happened(self):
        processes.Process.life_seconds = 300
        folder = FOLDER or self.enterContext(tempfile.TemporaryDirectory())
        cluster = self.enterContext(LocalCluster(LOCKSTEP))
        prometheus = self.enterContext(Prometheus(sorted(cluster.metrics.values())))
        began = time.monotonic()
        self.load(cluster, streams=8)
        load = threading.Thread(target=self.load, args=(cluster, 24))
        load.start()
        threading.Event().wait(5)
        os.kill(self.pid_of("worker-0", cluster), signal.SIGKILL)
        load.join()
        self.groups(cluster)
        self.load(cluster, streams=8)
        seconds = time.monotonic() - began
        drawn = draw_panels.draw_all(prometheus.address, seconds, folder)
        panels = {panel for panels in drawn.values() for panel in panels}
        self.assertEqual(SURELY - panels, set())
        for path in drawn:
            self.assertLess(path.stat().st_size, BYTES_MAX, path)
        print(f"{len(panels)} panels of {seconds:.0f} s in {len(drawn)} files", file=sys.stderr)

    def load(self, cluster, streams):
        done = subprocess.run(
            [LOCKSTEP, "bench", f"--target={cluster.gateway}", f"--streams={streams}",
             "--prompt_tokens=200", "--new_tokens=200", "--requests=100", "--repeats=2"],
            capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def groups(self, cluster):
        """Prompts that are drawn from several times."""
        for first in range(20):
            prompt = ",".join(str(first + i) for i in range(200))
            with cluster.generate(f"--prompt_ids={prompt}", "--n=8", "--max_new_tokens=50",
                                  "--ignore_eos") as client:
                self.assertEqual(client.wait(), 0, client.stdout.read())

    def pid_of(self, name, cluster):
        return int((cluster.folder / "run" / f"{name}.pid").read_text())


if __name__ == "__main__":
    del sys.argv[1:]
    unittest.main()
