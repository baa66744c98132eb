"""Processes of a test: a local lockstep cluster and a Prometheus that scrapes it."""

import contextlib
import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.parse
import urllib.request

# Nothing here should take a tenth of it; it only ends a test that hangs.
PATIENCE_SECONDS = 60


class Process:
    """A child in a folder of its own, stopped and removed at the end of the `with`."""

    # After which it is killed, so that a test ends that hangs.
    life_seconds = PATIENCE_SECONDS

    def __init__(self, command):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-deploy-"))
        self.command = [str(word).replace("{folder}", str(self.folder)) for word in command]

    def __enter__(self):
        self.child = subprocess.Popen(self.command, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True)
        self._killer = threading.Timer(self.life_seconds, self.child.kill)
        self._killer.start()
        try:
            self.started()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self._killer.cancel()
        self.child.send_signal(signal.SIGTERM)
        try:
            self.child.communicate(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)

    def read_until(self, pattern):
        """Output up to the first line that the pattern is found in."""
        output = ""
        for line in self.child.stdout:
            output += line
            if re.search(pattern, line):
                return output
        raise AssertionError(f"{self.command[0]} ended early:\n{output}")

    def wait_until(self, condition):
        """Asks again and again, for the process has no other way to say so, until `condition` gives
        something true; returns that."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            found = condition()
            if found:
                return found
            try:
                self.child.wait(timeout=0.05)
            except subprocess.TimeoutExpired:
                continue
            raise AssertionError(f"{self.command[0]} ended early")
        raise AssertionError(f"not within {PATIENCE_SECONDS} s: {condition.__doc__}")


class LocalCluster(Process):
    """`lockstep up` with the demo model on free ports."""

    def __init__(self, lockstep):
        self.lockstep = lockstep
        super().__init__([lockstep, "up", "--port=0", "--run_dir={folder}/run"])

    def started(self):
        output = self.read_until(r"^trainers call")
        found = re.findall(r"^\s+([\w-]+)\s+(\S+:\d+)\s+http://(\S+)/metrics$", output, re.M)
        self.gateway = {name: address for name, address, _ in found}["gateway"]
        self.metrics = {name: address for name, _, address in found}

    def pages(self):
        """{process: its page of metrics}."""
        return {name: fetch(f"http://{address}/metrics")
                for name, address in self.metrics.items()}

    def generate(self, *flags):
        """A `lockstep generate` that has begun; the caller waits for it or kills it."""
        return subprocess.Popen([self.lockstep, "generate", f"--target={self.gateway}", *flags],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class Prometheus(Process):
    """A real Prometheus, scraping host:port targets and applying rules five times a second, which
    tells an Alertmanager at host:port of what fires. `scrape` says more about how it scrapes, and
    `jobs` all that it scrapes in place of them."""

    def __init__(self, targets=(), rule_files=(), alertmanager=None, scrape=None, jobs=None):
        super().__init__(["prometheus", "--config.file={folder}/prometheus.yml",
                          "--storage.tsdb.path={folder}/data",
                          "--web.listen-address=127.0.0.1:0"])
        config = {"global": {"scrape_interval": "200ms", "scrape_timeout": "200ms",
                             "evaluation_interval": "200ms"},
                  "rule_files": [str(path) for path in rule_files],
                  "scrape_configs": jobs or [{
                      "job_name": "lockstep", **(scrape or {}),
                      "static_configs": [{"targets": list(targets)}]}]}
        if alertmanager is not None:
            config["alerting"] = {"alertmanagers": [
                {"static_configs": [{"targets": [alertmanager]}]}]}
        # JSON is YAML.
        (self.folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")

    def started(self):
        listening = r'"Listening on" address=(\S+)'
        output = self.read_until(r"Server is ready")
        if not re.search(listening, output):  # Two threads write these lines.
            output += self.read_until(listening)
        self.address = re.search(listening, output).group(1)

    def query(self, expression):
        """The values of an instant query, by instance."""
        query = urllib.parse.urlencode({"query": expression})
        answer = json.loads(fetch(f"http://{self.address}/api/v1/query?{query}"))
        return {row["metric"].get("instance", ""): float(row["value"][1])
                for row in answer["data"]["result"]}


class Alertmanager(Process):
    """A real Alertmanager that tells nobody, by itself."""

    def __init__(self):
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        super().__init__(["prometheus-alertmanager", "--config.file={folder}/alertmanager.yml",
                          "--storage.path={folder}/data", "--cluster.listen-address=",
                          f"--web.listen-address={self.address}"])
        (self.folder / "alertmanager.yml").write_text(
            json.dumps({"route": {"receiver": "nobody"}, "receivers": [{"name": "nobody"}]}),
            encoding="utf-8")

    def started(self):
        self.read_until(r"Listening")

    def active(self):
        """Names of the alerts that it holds and that have not ended."""
        alerts = json.loads(fetch(f"http://{self.address}/api/v2/alerts?active=true"))
        return {one["labels"]["alertname"] for one in alerts}


def free_ports(count):
    """Ports that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0)))
                   for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def fetch(url):
    with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
        return answer.read().decode()
