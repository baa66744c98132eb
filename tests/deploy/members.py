"""The processes of one cluster without a supervisor: what a test ends stays ended."""

import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

import secrets_of_roles as secrets
from processes import PATIENCE_SECONDS, fetch, free_ports

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CLUSTER_ID = "members"
MODEL = ROOT / "deploy" / "demo-model"


class Member:
    """A process of one role with its configuration."""

    def __init__(self, lockstep, folder, name, role, settings, ports, trust="plaintext: true"):
        self.name, self.lockstep, self.role, self.child = name, lockstep, role, None
        self.address, self.metrics = (f"127.0.0.1:{port}" for port in ports)
        self.config, self.log = folder / f"{name}.textproto", folder / f"{name}.log"
        self.config.write_text(
            f'server {{ listen: "{self.address}" metrics_listen: "{self.metrics}"'
            f' cluster_id: "{CLUSTER_ID}" {trust} drain_finish_seconds: 1 }}\n{settings}\n',
            encoding="utf-8")

    def start(self):
        with open(self.log, "ab") as log:
            self.child = subprocess.Popen([self.lockstep, self.role, f"--config={self.config}"],
                                          stdout=log, stderr=log)
        return self

    def wait(self, service):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while subprocess.run([self.lockstep, "health", f"--target={self.address}",
                              f"--service={service}"], capture_output=True,
                             check=False).returncode != 0:
            if self.child.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{self.name}:\n{self.log.read_text()[-4000:]}")

    def wait_for_metrics(self):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return fetch(f"http://{self.metrics}/metrics")
            except OSError:
                if time.monotonic() > deadline:
                    raise

    def signal(self, number):
        self.child.send_signal(number)

    def kill(self):
        """SIGKILL; returns when it is gone."""
        if self.child is not None:
            self.child.kill()
            self.child.wait()
            self.child = None

    def end(self):
        """SIGTERM; returns when its drain is over."""
        self.signal(signal.SIGTERM)
        self.child.wait(PATIENCE_SECONDS)
        self.child = None

    def metric(self, name):
        """Sum over labels."""
        page = fetch(f"http://{self.metrics}/metrics")
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.M))


class Members:
    """Gateway, router, scheduler and one worker of the demo model with little KV. Beside them are
    `stranger`, a worker of another contract that is not started, and `guarded`, a scheduler by TLS
    that nobody calls."""

    def __init__(self, lockstep):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-members-"))
        ports = free_ports(12)
        at = [f"127.0.0.1:{port}" for port in ports]
        settings = {
            "scheduler": f'state_file: "{self.folder}/state"\nlease_seconds: 1\n'
                         'overcommit_percent: 400\nreserve_horizon_tokens: 1',
            "router": f'router_id: "router"\nscheduler: "{at[0]}"',
            "gateway": f'routers: "{at[2]}"\nscheduler: "{at[0]}"\ntokenizer_dir: "{MODEL}"',
            "worker": f'worker_id: "worker"\nscheduler: "{at[0]}"\nmodel: "{MODEL}"\nthreads: 1\n'
                      'kv_bytes: 8388608',
        }
        settings["stranger"] = settings["worker"].replace(
            '"worker"', '"stranger"') + "\nreduction_segments: 2"
        self.by_name = {
            name: Member(lockstep, self.folder, name, "worker" if name == "stranger" else name,
                         text, ports[2 * i:2 * i + 2])
            for i, (name, text) in enumerate(settings.items())}
        self._tls = self.folder / "tls"
        self._tls.mkdir()
        files = (f'certificate_file: "{self._tls}/tls.crt" key_file: "{self._tls}/tls.key"'
                 f' authorities_file: "{self._tls}/ca.crt" reload_seconds: 1')
        self.by_name["guarded"] = Member(
            lockstep, self.folder, "guarded", "scheduler",
            f'state_file: "{self.folder}/guarded"', ports[10:12],
            trust=f"tls {{ {files} }} metrics_plaintext: true")

    def certify_guarded(self, days):
        """Gives it a certificate that ends in so many days, by a rename of each file."""
        for name, text in secrets.authority().tls("scheduler", days).items():
            new = self._tls / f"{name}.new"
            new.write_text(text, encoding="utf-8")
            new.rename(self._tls / name)

    def __enter__(self):
        self.certify_guarded(days=30)
        for name, member in self.by_name.items():
            if name != "stranger":
                member.start()
        for name, member in self.by_name.items():
            if name not in ("stranger", "guarded"):
                member.wait("ready")
        return self

    def __exit__(self, *_):
        for member in self.by_name.values():
            member.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __getattr__(self, name):
        try:
            return self.__dict__["by_name"][name]
        except KeyError:
            raise AttributeError(name) from None
