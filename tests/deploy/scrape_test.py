#!/usr/bin/env python3
"""Metrics by TLS and with a scraper's token, as Prometheus takes them: with the right token and
authorities it scrapes, with others it does not, and it goes on while both are replaced.

Usage: tests/deploy/scrape_test.py PATH_OF_LOCKSTEP [unittest arguments]
"""

import json
import pathlib
import shutil
import ssl
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request

import yaml

import secrets_of_roles as secrets
from processes import PATIENCE_SECONDS, Process, Prometheus, free_ports

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LOCKSTEP = sys.argv.pop(1)
EXAMPLE = ROOT / "deploy" / "monitoring" / "scrape.yaml"
OLD, NEW = "token-of-the-scraper", "next-token-of-the-scraper"


class Router(Process):
    """A router by TLS that nobody calls. Its files are written by a rename, tokens and certificates
    each together."""

    def __init__(self):
        super().__init__([LOCKSTEP, "router", "--config={folder}/router.textproto"])
        self.metrics = f"127.0.0.1:{free_ports(1)[0]}"
        self.authorities = self.folder / "tls" / "ca.crt"
        for name in ("tls", "tokens"):
            (self.folder / name).mkdir()
        self.certify(secrets.authority())
        self.admit(OLD)
        files = " ".join(f'{field}_file: "{self.folder}/tls/{name}"' for field, name in (
            ("certificate", "tls.crt"), ("key", "tls.key"), ("authorities", "ca.crt")))
        (self.folder / "router.textproto").write_text(
            f'server {{ listen: "127.0.0.1:0" metrics_listen: "{self.metrics}"'
            f' metrics_tokens_dir: "{self.folder}/tokens" cluster_id: "scrape"'
            f' tls {{ {files} reload_seconds: 1 }} }}'
            ' router_id: "router" scheduler: "127.0.0.1:1"', encoding="utf-8")

    def started(self):
        self.wait_until(lambda: self.code(OLD))

    def _write(self, path, text):
        path.with_suffix(".new").write_text(text, encoding="utf-8")
        path.with_suffix(".new").rename(path)

    def certify(self, authority):
        for name, text in authority.tls("router").items():
            self._write(self.folder / "tls" / name, text)

    def admit(self, *tokens):
        self._write(self.folder / "tokens" / "scraper", "\n".join(tokens))

    def code(self, token):
        """The HTTP status that a client with the authority gets; None without a connection."""
        trust = ssl.create_default_context(cafile=str(self.authorities))
        trust.check_hostname = False
        asked = urllib.request.Request(f"https://{self.metrics}/metrics",
                                       headers={"Authorization": f"Bearer {token}"})
        try:
            with urllib.request.urlopen(asked, timeout=PATIENCE_SECONDS, context=trust) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except urllib.error.URLError:
            return None


@unittest.skipIf(secrets.why_no_secrets(), secrets.why_no_secrets())
class ScrapeTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.token = self.folder / "token"
        self.token.write_text(OLD, encoding="utf-8")
        self.router = self.enterContext(Router())

    def test_a_wrong_token_gets_401_and_the_log_does_not_hold_it(self):
        self.assertEqual([self.router.code(token) for token in (OLD, NEW, "", OLD + "x")],
                         [200, 401, 401, 401])
        self.router.child.terminate()
        self.assertNotIn("token-of", self.router.child.communicate()[0])

    @unittest.skipUnless(shutil.which("prometheus"), "prometheus is not installed")
    def test_prometheus_scrapes_while_certificate_authority_and_token_are_replaced(self):
        trust = {"scheme": "https",
                 "tls_config": {"ca_file": str(self.router.authorities), "server_name": "router"},
                 "authorization": {"credentials_file": str(self.token)}}
        with Prometheus([self.router.metrics], scrape=trust) as prometheus:
            def up(value):
                """Prometheus says so of its last scrape."""
                return lambda: list(prometheus.query("up").values()) == [value]

            prometheus.wait_until(up(1))
            self.token.write_text(NEW, encoding="utf-8")
            prometheus.wait_until(up(0))
            self.router.admit(OLD, NEW)
            prometheus.wait_until(up(1))
            self.router.admit(NEW)
            self.router.wait_until(lambda: self.router.code(OLD) == 401)
            self.assertEqual(self.router.code(NEW), 200)
            prometheus.wait_until(up(1))
            # Another authority altogether: what Prometheus trusts is the same file.
            self.router.certify(secrets.Authority())
            end = "lockstep_process_certificate_end_seconds"
            prometheus.wait_until(lambda: self.router.code(NEW) == 200 and up(1)())
            self.assertEqual(len(prometheus.query(f"count({end}) == 2")), 1)

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed")
    def test_prometheus_reads_the_example_of_a_configuration(self):
        config = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
        for job in config["scrape_configs"]:
            # Which Debian's build leaves out; discovery_test.py tells it what was discovered.
            self.assertEqual(job.pop("kubernetes_sd_configs")[0]["role"], "pod")
            job["static_configs"] = [{"targets": ["192.0.2.1:7101"]}]
        path = self.folder / "prometheus.yaml"
        path.write_text(json.dumps(config), encoding="utf-8")
        done = subprocess.run(["promtool", "check", "config", "--syntax-only", path],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    @unittest.skipUnless(shutil.which("vmagent"), "vmagent is not installed")
    def test_who_knows_every_word_reads_the_example_and_finds_a_misspelt_one(self):
        for name, text in (("ca.crt", self.router.authorities.read_text()), ("scraper", OLD)):
            (self.folder / name).write_text(text, encoding="utf-8")
        text = EXAMPLE.read_text(encoding="utf-8").replace("/etc/prometheus/lockstep",
                                                           str(self.folder))
        for word, misspelt in ((None, None), ("{role: pod", "{rule: pod"),
                               ("- role: pod", "- rule: pod"), ("action: drop", "action: dropped"),
                               ("credentials_file", "credential_file"),
                               ("regex: metrics", "regex: metrics(")):
            path = self.folder / "scrape.yaml"
            path.write_text(text.replace(word, misspelt) if word else text, encoding="utf-8")
            done = subprocess.run(["vmagent", "-dryRun", f"-promscrape.config={path}",
                                   "-remoteWrite.url=http://127.0.0.1:1/"],
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode != 0, word is not None, (word, done.stderr))


if __name__ == "__main__":
    unittest.main()
