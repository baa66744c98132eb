#!/usr/bin/env python3
"""What deploy/quickstart.sh says before it installs, builds or starts anything.

Usage: tests/deploy/quickstart_test.py PATH_OF_LOCKSTEP [unittest arguments]
"""

import pathlib
import socket
import subprocess
import sys
import unittest

QUICKSTART = pathlib.Path(__file__).resolve().parent.parent.parent / "deploy" / "quickstart.sh"
FIRST_STEP = "== 1/5"


class QuickstartTest(unittest.TestCase):
    """Words that end it: its first step would be named."""

    def run_with(self, *words):
        """Exit status, output and errors; killed when it gets to its first step."""
        with subprocess.Popen([QUICKSTART, *words], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as process:
            lines = []
            for line in process.stdout:
                lines.append(line)
                if FIRST_STEP in line:
                    process.kill()
                    break
            output = "".join(lines)
            self.assertNotIn(FIRST_STEP, output, words)
            return process.wait(), output, process.stderr.read()

    def test_help_is_no_mistake(self):
        status, output, error = self.run_with("--help")
        self.assertEqual((status, error), (0, ""))
        for word in ("--once", "--port"):
            self.assertIn(word, output)

    def test_refuses_what_it_cannot_do_before_any_work(self):
        for word in ("--port=", "--port=0", "--port=-1", "--port=65527", "--port=abc",
                     "--port=7100x", "--port=9223372036854775807", "--port=99999999999999999999"):
            status, _, error = self.run_with(word)
            self.assertEqual(status, 2, word)
            self.assertIn(f"--port: '{word[7:]}' is not a whole number in [1, 65526]", error)
        for word in ("--prot=7100", "once", ""):
            status, _, error = self.run_with(word)
            self.assertEqual(status, 2, word)
            self.assertIn(f"quickstart.sh: {word}: unknown", error)

    def test_refuses_ports_in_use(self):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            used = listener.getsockname()[1]
            for first in (used, used - 9):
                status, _, error = self.run_with("--once", f"--port={first}")
                self.assertEqual(status, 2)
                self.assertIn("is in use", error)


if __name__ == "__main__":
    sys.argv.pop(1)
    unittest.main()
