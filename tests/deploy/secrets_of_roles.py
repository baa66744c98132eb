"""What an operator makes beside the manifests: certificates of one authority, whom to trust, and
tokens."""

import functools
import pathlib
import shutil
import subprocess
import tempfile

# Where manifests mount them.
MOUNTED = "/run/secrets/lockstep"
SCRAPER = {"scraper": "token-of-the-scraper"}
# What Prometheus sends.
PROMETHEUS = {"token": "token-of-the-scraper"}
TOKENS = {"trainer": "token-of-the-trainer", "operator": "token-of-the-operator"}
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def why_no_secrets():
    """A reason to skip, or None."""
    return None if shutil.which("openssl") else "openssl is not installed"


def _request(*words):
    done = subprocess.run(["openssl", "req", "-x509", *_NEW_KEY, *map(str, words)],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(done.stderr)


class Authority:
    """Signs certificates; lives as long as the test."""

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(self._folder.name)
        self.certificate, self._key = folder / "ca.crt", folder / "ca.key"
        self.trainer_token = folder / "token"
        self.trainer_token.write_text(TOKENS["trainer"], encoding="utf-8")
        _request("-subj", "/CN=authority", "-keyout", self._key, "-out", self.certificate)

    def tls(self, name, days=30):
        """{file: content} of the Secret of one role."""
        with tempfile.TemporaryDirectory() as folder:
            certificate, key = pathlib.Path(folder) / "crt", pathlib.Path(folder) / "key"
            _request("-days", days, "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}",
                     "-addext", "basicConstraints=critical,CA:FALSE", "-CA", self.certificate,
                     "-CAkey", self._key, "-keyout", key, "-out", certificate)
            return {"tls.crt": certificate.read_text(), "tls.key": key.read_text(),
                    "ca.crt": self.certificate.read_text()}


@functools.cache
def authority():
    """The one of this test run."""
    return Authority()


def of_cluster(cluster, signed_by=None):
    """{name: {file: content}} of all that a cluster's pods and who proves it mount and manifests do
    not make; certificates by the authority of this test run, or another one."""
    found = {"authorities": {"ca.crt": (signed_by or authority()).certificate.read_text()},
             "prometheus-token": PROMETHEUS, "verify-token": {"token": TOKENS["operator"]}}
    for workload in cluster.workloads():
        for volume in workload.volumes().values():
            name = volume.get("secret", {}).get("secretName", "")
            if name.endswith("-tls"):
                found[name] = (signed_by or authority()).tls(workload.name)
            elif name == "scraper-tokens":
                found[name] = SCRAPER
            elif name.endswith("-tokens"):
                found[name] = TOKENS
    return found


def write(folder, role):
    """Writes tls/, authorities/, tokens/ and scrapers/ of one role into `folder`."""
    trust = {"ca.crt": authority().certificate.read_text()}
    for name, files in (("tls", authority().tls(role)), ("authorities", trust), ("tokens", TOKENS),
                        ("scrapers", SCRAPER)):
        (pathlib.Path(folder) / name).mkdir()
        for file, text in files.items():
            (pathlib.Path(folder) / name / file).write_text(text, encoding="utf-8")
