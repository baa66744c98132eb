"""Manifests as kubectl renders them, and what the tests read from them."""

import pathlib
import re
import shutil
import subprocess

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
KUBERNETES = ROOT / "deploy" / "k8s"
OVERLAYS = ("local", "local-green", "gpu-tp1", "gpu-tp2")
# What images carry, by docs and manifests alike.
IMAGE_ROOT = "/opt/lockstep"


def why_not_rendered():
    """A reason to skip, or None."""
    if shutil.which("kubectl") is None:
        return "kubectl is not installed"
    version = subprocess.run(["kubectl", "version", "--client"], capture_output=True, text=True,
                             check=False).stdout
    found = re.search(r"Kustomize Version: v(\d+)", version)
    if found is None or int(found.group(1)) < 5:
        return "this kubectl has a kustomize older than 5, which knows no components"
    return None


def render(folder):
    """Text of all objects of a folder with a kustomization.yaml."""
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        raise AssertionError(f"kubectl kustomize {folder}:\n{done.stderr}")
    return done.stdout


def parse(text):
    return list(yaml.safe_load_all(text))


class Cluster:
    """Objects of one namespace, found by kind and name."""

    def __init__(self, objects):
        self.objects = objects
        (self.namespace,) = [one["metadata"]["name"] for one in self.of_kind("Namespace")]

    def of_kind(self, *kinds):
        return [one for one in self.objects if one["kind"] in kinds]

    def find(self, kind, name):
        for one in self.of_kind(kind):
            if one["metadata"]["name"] == name:
                return one
        return None

    def workloads(self):
        return [Workload(self, one) for one in self.of_kind("Deployment", "StatefulSet")]

    def workload(self, name):
        return next((one for one in self.workloads() if one.name == name), None)


class Workload:
    """A Deployment or StatefulSet, of one container beside its init containers."""

    def __init__(self, cluster, body):
        self.cluster = cluster
        self.body = body
        self.name = body["metadata"]["name"]
        self.replicas = body["spec"].get("replicas", 1)
        self.labels = body["spec"]["template"]["metadata"]["labels"]
        self.annotations = body["spec"]["template"]["metadata"].get("annotations", {})
        self.pod = body["spec"]["template"]["spec"]
        (self.main,) = self.pod["containers"]

    def containers(self):
        return self.pod.get("initContainers", []) + self.pod["containers"]

    def volumes(self):
        return {one["name"]: one for one in self.pod.get("volumes", [])}

    def ports(self):
        return {one["name"]: one["containerPort"] for one in self.main["ports"]}

    def config_files(self):
        """{path: text, or None where no config map has it} of the text protos that the process
        reads, in their order, before variables are replaced."""
        mounts = {one["mountPath"]: one["name"] for one in self.main.get("volumeMounts", [])}
        found = {}
        for path in [word.removeprefix("--config=") for word in self.main["args"]]:
            folder, _, name = path.rpartition("/")
            volume = self.volumes().get(mounts.get(folder), {})
            data = self.cluster.find("ConfigMap", volume.get("configMap", {}).get("name"))
            found[path] = None if data is None else data["data"].get(name)
        return found

    def config_text(self):
        """All of them, one after the other."""
        return "\n".join(text or "" for text in self.config_files().values())

    def config(self):
        """{field: [values]} of the text proto. Names of fields are unique over its messages."""
        found = {}
        for name, value in re.findall(r'^\s*(\w+): "?([^"\n]*)"?$', self.config_text(), re.M):
            found.setdefault(name, []).append(value)
        return found

    def setting(self, name, default):
        return self.config().get(name, [default])[0]


def selects(selector, labels):
    """Whether a label selector with matchLabels only fits; an empty one fits all."""
    if set(selector) - {"matchLabels"}:
        raise AssertionError(f"selector with more than labels: {selector}")
    return all(labels.get(key) == value
               for key, value in selector.get("matchLabels", {}).items())


def quantity(text):
    """A quantity of Kubernetes as a number."""
    number, unit = re.fullmatch(r"([\d.]+)(\D*)", str(text)).groups()
    return float(number) * {"": 1, "m": 1e-3, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}[unit]
