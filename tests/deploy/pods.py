"""Pods as local processes: what a kubelet and a cluster's name service do, without either.

A pod gets a network namespace with an address of its own. A container gets the root file system of
an image, read-only, with its volumes mounted where the manifest says; it runs the manifest's
command as the manifest's user, without capabilities. Probes and preStop run inside it. All of it
happens in namespaces that end with the test.
"""

import itertools
import os
import pathlib
import shutil
import signal
import socketserver
import subprocess
import sys
import threading
import time

from manifests import ROOT, selects

DOMAIN = "svc.cluster.local"
# Clients of the test, which are in no pod, look names up as pods of this namespace do.
CLIENTS_NAMESPACE = "lockstep"
BRIDGE_ADDRESS = "10.77.0.1"
MARK = "LOCKSTEP_TEST_PODS"
# Only ends a test that hangs.
PATIENCE_SECONDS = 120
# The kernel takes its time to remove the links of networks that are gone.
LINK_NUMBERS = itertools.count()

# Makes the root file system; then binds SOURCE TARGET MODE triples; then becomes the command.
ENTER = r"""
set -e
root=$1 binary=$2 model=$3 resolv=$4; shift 4
mount -t tmpfs -o mode=0755 image "$root"
mkdir -p "$root"/usr "$root"/etc "$root"/dev "$root"/proc "$root"/tmp \
  "$root"/opt/lockstep/bin "$root"/opt/lockstep/demo-model
bind() {
  mount --bind "$1" "$root$2"
  [ "$3" = rw ] || mount -o remount,bind,ro "$root$2"
}
bind /usr /usr ro
for link in bin lib lib64; do ln -s "usr/$link" "$root/$link"; done
cp /etc/ld.so.cache "$root"/etc
cp "$resolv" "$root"/etc/resolv.conf
touch "$root"/dev/null "$root"/dev/urandom "$root"/opt/lockstep/bin/lockstep
bind /dev/null /dev/null rw
bind /dev/urandom /dev/urandom rw
bind /proc /proc ro
bind "$binary" /opt/lockstep/bin/lockstep ro
bind "$model" /opt/lockstep/demo-model ro
while [ "$1" != -- ]; do
  mkdir -p "$root$2"
  bind "$1" "$2" "$3"
  shift 3
done
shift
mount -o remount,ro "$root"
exec chroot "$root" "$@"
"""


def why_no_pods():
    """A reason to skip, or None."""
    if os.geteuid() != 0:
        return "only root makes namespaces"
    for tool in ("ip", "unshare", "nsenter", "setpriv"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    if subprocess.run(["unshare", "--net", "--mount", "ip", "link", "add",
                       "name", "probe0", "type", "veth"],
                      capture_output=True, check=False).returncode != 0:
        return "this kernel lets nobody make network namespaces"
    return None


def enter_own_namespaces():
    """Starts this program anew where it can neither see nor disturb the machine's networks."""
    if MARK not in os.environ:
        os.execvpe("unshare", ["unshare", "--net", "--mount", sys.executable, "-B", *sys.argv],
                   {**os.environ, MARK: "1"})


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, words))}:\n{done.stdout}{done.stderr}")


class Node:
    """Holds pods of one or more namespaces, their volumes, and the name service."""

    def __init__(self, lockstep, folder, secrets):
        # {name: {file: content}} of what manifests do not make: Secrets, and one config map.
        self.secrets = secrets
        self.lockstep = lockstep
        self.folder = pathlib.Path(folder)
        self.pods = []
        self.networks = []
        self.lock = threading.Lock()
        self._clusters = {}  # by namespace
        self._addresses = 1

    def apply(self, cluster):
        """Takes the objects of a namespace in place of those it had."""
        with self.lock:
            self._clusters[cluster.namespace] = cluster

    def resolv(self, namespace):
        """The file that says how names are looked up in a namespace."""
        path = self.folder / f"resolv-{namespace}.conf"
        if path.exists():  # Clients may be reading it.
            return path
        path.write_text(f"search {namespace}.{DOMAIN} {DOMAIN}\nnameserver {BRIDGE_ADDRESS}\n"
                        "options ndots:5\n", encoding="utf-8")
        return path

    def __enter__(self):
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "pods", "type", "bridge")
        run("ip", "address", "add", f"{BRIDGE_ADDRESS}/16", "dev", "pods")
        run("ip", "link", "set", "pods", "up")
        # Clients of the test are outside of pods, and use the same names.
        run("mount", "--bind", self.resolv(CLIENTS_NAMESPACE), "/etc/resolv.conf")
        self._names = socketserver.UDPServer((BRIDGE_ADDRESS, 53), NameHandler)
        self._names.node = self
        threading.Thread(target=self._names.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        for pod in list(self.pods):
            pod.kill()
        for network in self.networks:
            run("umount", network)
        self._names.shutdown()
        self._names.server_close()
        run("umount", "/etc/resolv.conf")
        run("ip", "link", "delete", "pods")

    def replace_secrets(self, secrets):
        """As an operator does; files in pods that run change at once, together."""
        self.secrets = secrets
        with self.lock:
            for pod in self.pods:
                pod.write_secrets()

    def next_address(self):
        """An address is never used again, like those of a busy cluster."""
        with self.lock:
            self._addresses += 1
            return f"10.77.{self._addresses // 250}.{self._addresses % 250 + 2}"

    def look_up(self, name):
        """(name it stands for, or None; addresses) of a service by its full name. Headless services
        and names of other names are known, of which none stands for a third one; None of others."""
        service_name, _, namespace = name.removesuffix(f".{DOMAIN}").partition(".")
        with self.lock:
            cluster = self._clusters.get(namespace)
            service = cluster and cluster.find("Service", service_name)
        if not service or not name.endswith(f".{DOMAIN}"):
            return None
        if service["spec"].get("type") == "ExternalName":
            other = service["spec"]["externalName"]
            return other, (self.look_up(other) or (None, []))[1]
        if service["spec"].get("clusterIP") != "None":
            return None
        unready = service["spec"].get("publishNotReadyAddresses", False)
        with self.lock:
            return None, [pod.address for pod in self.pods
                          if pod.workload.cluster.namespace == namespace
                          and selects({"matchLabels": service["spec"]["selector"]},
                                      pod.workload.labels)
                          and (unready or pod.ready) and not pod.leaving]


def record(name, kind, data):
    """A resource record that may be kept for a second."""
    return name + b"\0" + bytes([kind]) + b"\0\1\0\0\0\1" + len(data).to_bytes(2, "big") + data


class NameHandler(socketserver.BaseRequestHandler):
    """A name server for services."""

    def handle(self):
        query, socket = self.request
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1:at + 1 + query[at]].decode())
            at += 1 + query[at]
        question = query[12:at + 5]
        found = self.server.node.look_up(".".join(labels).lower())
        other, addresses = found or (None, [])
        records, name = [], b"\xc0\x0c"
        if other is not None:
            target = b"".join(bytes([len(one)]) + one.encode() for one in other.split("."))
            records.append(record(name, 5, target + b"\0"))
            name = target + b"\0"
        if question[-4:] == b"\0\1\0\1":
            records += [record(name, 1, bytes(map(int, one.split(".")))) for one in addresses]
        code = 3 if found is None else 0
        socket.sendto(query[:2] + bytes([0x85, 0x80 | code]) + b"\0\1"
                      + len(records).to_bytes(2, "big") + b"\0\0\0\0" + question
                      + b"".join(records), self.client_address)


class Pod:
    """One pod of a workload, from its init containers to its end."""

    def __init__(self, node, workload, name):
        self.node, self.workload, self.name = node, workload, name
        self.address = node.next_address()
        self.ready = self.leaving = False
        self.restarts = 0  # that a kubelet would have made for want of liveness
        self._ended = threading.Event()
        number = self.address.replace(".", "-")
        self.folder = node.folder / f"{name}-{number}"
        for part in ("root", "volumes"):
            (self.folder / part).mkdir(parents=True)
        self.log = self.folder / "log"
        self._net = self.folder / "net"
        self._net.touch()
        self._link = f"pod{next(LINK_NUMBERS)}"
        self._connect()
        with node.lock:
            node.pods.append(self)
        with open(self.log, "wb") as log:
            for container in workload.pod.get("initContainers", []):
                done = subprocess.run(self._command(container), stdout=log, stderr=log,
                                      check=False)
                if done.returncode != 0:
                    raise AssertionError(f"{name}/{container['name']}: {self.log.read_text()}")
            self.child = subprocess.Popen(self._command(workload.main), stdout=log, stderr=log)
        if "startupProbe" in workload.main:
            threading.Thread(target=self._probe, daemon=True).start()

    def _connect(self):
        run("unshare", f"--net={self._net}", "true")
        inside = ("nsenter", f"--net={self._net}", "ip")
        run(*inside, "link", "set", "lo", "up")
        run(*inside, "link", "add", "eth0", "type", "veth", "peer", "name", self._link, "netns",
            os.getpid())
        run(*inside, "address", "add", f"{self.address}/16", "dev", "eth0")
        run(*inside, "link", "set", "eth0", "up")
        run("ip", "link", "set", self._link, "master", "pods", "up")

    def _volume(self, name):
        """Folder that stands for a volume; a claim's outlives the pod."""
        volume = self.workload.volumes()[name]
        claim = volume.get("persistentVolumeClaim")
        namespace = self.workload.cluster.namespace
        folder = (self.folder / "volumes" / name if claim is None
                  else self.node.folder / f"claim-{namespace}-{claim['claimName']}")
        if folder.exists():
            return folder
        folder.mkdir()
        if self._secret_of(volume):
            self._write_secret(folder, self.node.secrets[self._secret_of(volume)])
        elif "configMap" in volume:
            data = self.workload.cluster.find("ConfigMap", volume["configMap"]["name"])["data"]
            for key, text in data.items():
                (folder / key).write_text(text, encoding="utf-8")
        else:
            os.chown(folder, 0, self.workload.pod["securityContext"]["fsGroup"])
            folder.chmod(0o2775)
        return folder

    def _secret_of(self, volume):
        """Name of what an operator makes and may replace, or None."""
        name = volume.get("configMap", {}).get("name") or volume.get("secret", {}).get("secretName")
        return name if "secret" in volume or name in self.node.secrets else None

    def _write_secret(self, folder, files):
        """Files are links through one link to a folder, which is replaced by another one."""
        content = folder / f"..{len(list(folder.glob('..[0-9]*')))}"
        content.mkdir()
        for name, text in files.items():
            (content / name).write_text(text, encoding="utf-8")
            if not (folder / name).is_symlink():
                (folder / name).symlink_to(f"..data/{name}")
        (folder / "..new").symlink_to(content.name)
        (folder / "..new").rename(folder / "..data")

    def write_secrets(self):
        for name, volume in self.workload.volumes().items():
            folder = self.folder / "volumes" / name
            if self._secret_of(volume) and folder.exists():
                self._write_secret(folder, self.node.secrets[self._secret_of(volume)])

    def _as_user(self):
        context = self.workload.pod["securityContext"]
        return ["setpriv", f"--reuid={context['runAsUser']}", f"--regid={context['runAsGroup']}",
                "--clear-groups", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--"]

    def _environment(self, container):
        facts = {"metadata.name": self.name, "status.podIP": self.address,
                 "metadata.namespace": self.workload.cluster.namespace}
        return ["env", "-i", "PATH=/usr/bin:/bin"] + [
            f"{one['name']}={facts[one['valueFrom']['fieldRef']['fieldPath']]}"
            for one in container.get("env", [])]

    def _command(self, container):
        words = ["nsenter", f"--net={self._net}", "unshare", "--mount", "sh", "-c", ENTER, "enter",
                 self.folder / "root", self.node.lockstep, ROOT / "deploy" / "demo-model",
                 self.node.resolv(self.workload.cluster.namespace)]
        for mount in container.get("volumeMounts", []):
            words += [self._volume(mount["name"]), mount["mountPath"],
                      "ro" if mount.get("readOnly") else "rw"]
        words += ["--", *self._as_user(), *self._environment(container), *container["command"],
                  *container.get("args", [])]
        return [str(word) for word in words]

    def execute(self, command, timeout):
        """Exit code of a command inside the running container; None when it took too long."""
        try:
            return subprocess.run(
                ["nsenter", f"--target={self.child.pid}", "--net", "--mount", "--root", "--wd=/",
                 *self._as_user(), *self._environment(self.workload.main), *command],
                capture_output=True, timeout=timeout, check=False).returncode
        except subprocess.TimeoutExpired:
            return None

    def healthy(self, kind):
        probe = self.workload.main[f"{kind}Probe"]
        return self.execute(probe["exec"]["command"], probe["timeoutSeconds"]) == 0

    def _probe(self):
        """Start-up first; then readiness and liveness, each at its period."""
        main = self.workload.main
        while not self.healthy("startup"):
            if self._ended.wait(main["startupProbe"]["periodSeconds"]):
                return
        period = main["readinessProbe"]["periodSeconds"]
        failures = dead = 0
        while not self._ended.is_set():
            failures = 0 if self.healthy("readiness") else failures + 1
            self.ready = failures < main["readinessProbe"]["failureThreshold"] and (
                self.ready or failures == 0)
            dead = 0 if self.leaving or self.healthy("liveness") else dead + 1
            if dead == main["livenessProbe"]["failureThreshold"]:
                self.restarts += 1
            self._ended.wait(period if self.ready else 1)

    def wait_ready(self):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.ready:
            if self.child.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{self.name} is not ready:\n{self.log.read_text()[-4000:]}")
            self._ended.wait(0.05)

    def delete(self):
        """What a kubelet does; returns the exit code, None when it had to be killed."""
        grace = self.workload.pod["terminationGracePeriodSeconds"]
        deadline = time.monotonic() + grace
        self.leaving = True
        stop = self.workload.main.get("lifecycle", {}).get("preStop")
        if stop is not None and self.execute(stop["exec"]["command"], grace) != 0:
            raise AssertionError(f"{self.name}: preStop failed")
        self.child.send_signal(signal.SIGTERM)
        try:
            code = self.child.wait(timeout=max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            code = None
        self.kill()
        return code

    def lose(self):
        """What the others see when the machine under it is gone: nothing, not even a connection
        that ends."""
        run("ip", "link", "set", self._link, "down")
        self.kill()

    def kill(self):
        self._ended.set()
        self.child.kill()
        self.child.wait()
        with self.node.lock:
            self.node.pods.remove(self)
            # What the process said last is still on its way.
            self.node.networks.append(self._net)
