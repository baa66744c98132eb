#!/usr/bin/env python3
"""deploy/monitoring/scrape.yaml over pods of `base`, which run as processes by TLS: who finds pods
by asking Kubernetes takes the metrics port of each of ours, with its role's authority and the
scraper's token, and nothing else.

Debian's Prometheus is built without this discovery, so vmagent does it, which reads the same file;
what it was told of pods is then given to Prometheus, which has to choose and name them alike.

Usage: tests/deploy/discovery_test.py PATH_OF_LOCKSTEP [unittest arguments]
"""

import copy
import json
import pathlib
import shutil
import time
import unittest

import yaml

import manifests
import pod_cases
import processes
import records
import secrets_of_roles as secrets
from kubernetes_api import KubernetesApi, object_of
from manifests import ROOT
from pods import BRIDGE_ADDRESS
from processes import Process, Prometheus, fetch, free_ports

SCRAPE = ROOT / "deploy" / "monitoring" / "scrape.yaml"
ACCOUNT = "token-of-a-service-account"


def why_not():
    """A reason to skip, or None."""
    for tool in ("vmagent", "prometheus"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    return None


def namespaces():
    """Those whose pods all jobs look for."""
    (names,) = {tuple(found["namespaces"]["names"])
                for job in yaml.safe_load(SCRAPE.read_text(encoding="utf-8"))["scrape_configs"]
                for found in job["kubernetes_sd_configs"]}
    return names


def targets_of(address):
    """({url: labels} of what is scraped, all that was discovered, whether all scrapes went well),
    which both tell by the same path."""
    data = json.loads(fetch(f"http://{address}/api/v1/targets?state=any"))["data"]
    active = data["activeTargets"]
    discovered = [one["discoveredLabels"] for one in active + (data["droppedTargets"] or [])]
    return ({one["scrapeUrl"]: one["labels"] for one in active}, discovered,
            all(one["health"] == "up" for one in active))


class VmAgent(Process):
    """Scrapes by a Prometheus configuration, and has nowhere to send samples."""

    def __init__(self, config):
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        super().__init__(["vmagent", "-promscrape.config={folder}/scrape.yaml",
                          f"-httpListenAddr={self.address}",
                          "-promscrape.kubernetesSDCheckInterval=1s",
                          "-remoteWrite.url=http://127.0.0.1:1/",
                          "-remoteWrite.tmpDataPath={folder}/data"])
        # JSON is YAML.
        (self.folder / "scrape.yaml").write_text(json.dumps(config), encoding="utf-8")

    def started(self):
        self.read_until(r"started service discovery routines")


def decoys(of_a_worker):
    """Pods that are not to be scraped."""
    def changed(name, namespace="lockstep", labels=None, **status):
        one = copy.deepcopy(of_a_worker)
        one["metadata"].update(name=name, namespace=namespace, uid=name)
        if labels is not None:
            one["metadata"]["labels"] = labels
        one["status"].update({"podIP": "192.0.2.7", **status})
        return one

    return [changed("evicted", phase="Failed"), changed("ended", phase="Succeeded"),
            changed("pending", phase="Pending", podIP=""),
            changed("neighbour", namespace="others"),
            changed("stranger", labels={"app.kubernetes.io/name": "debug"})]


@unittest.skipIf(why_not(), why_not())
class DiscoveryTest(pod_cases.PodsCase):
    maxDiff = None

    def setUp(self):
        super().setUp()
        processes.Process.life_seconds = 300
        self.files = pathlib.Path(self.folder)
        for name, text in (("scraper", secrets.SCRAPER["scraper"]), ("account", ACCOUNT),
                           *secrets.authority().tls("kubernetes").items()):
            (self.files / name).write_text(text, encoding="utf-8")

    def jobs(self, discovery):
        """Those of scrape.yaml with this test's files. `discovery` turns what a job says of how
        pods are found, and its name, into other words for a job."""
        jobs = yaml.safe_load(SCRAPE.read_text(encoding="utf-8"))["scrape_configs"]
        for job in jobs:
            self.assertEqual(job.pop("scrape_interval"), "15s")
            job["tls_config"]["ca_file"] = str(self.files / "ca.crt")
            job["authorization"]["credentials_file"] = str(self.files / "scraper")
            job.update(discovery(job.pop("kubernetes_sd_configs"), job["job_name"]))
        return jobs

    def expected(self):
        """{url: labels} of the pods that run."""
        return {f"https://{pod.address}:{pod.workload.ports()['metrics']}/metrics": {
            "job": "lockstep", "namespace": "lockstep", "pod": pod.name,
            "instance": f"{pod.address}:{pod.workload.ports()['metrics']}",
            "app_kubernetes_io_name": pod.workload.name} for pod in self.node.pods}

    def seconds_until_scraped(self, scraper):
        """Until what is expected, and nothing else, is scraped."""
        began = time.monotonic()
        expected = self.expected(), True
        try:
            scraper.wait_until(lambda: targets_of(scraper.address)[::2] == expected)
        except AssertionError:
            self.assertEqual(targets_of(scraper.address)[::2], expected)
        return round(time.monotonic() - began, 1)

    def test_pods_of_ours_are_found_and_scraped_and_nothing_else(self):
        self.make("base")
        running = self.start_all()
        api = self.enterContext(KubernetesApi(
            BRIDGE_ADDRESS, (self.files / "tls.crt", self.files / "tls.key"), ACCOUNT))
        objects = {pod.name: object_of(pod) for pod in self.node.pods}
        worker = running["worker"][0]
        # What a service mesh puts beside each process.
        objects[worker.name]["spec"]["containers"] = worker.workload.pod["containers"] + [
            {"name": "proxy", "ports": [{"name": "proxy-metrics", "containerPort": 15090}]},
            {"name": "helper"}]
        for one in [*objects.values(), *decoys(object_of(worker))]:
            api.put(one)
        trust = {"api_server": f"https://{api.address}",
                 "authorization": {"credentials_file": str(self.files / "account")},
                 "tls_config": {"ca_file": str(self.files / "ca.crt"),
                                "server_name": "kubernetes"}}
        agent = self.enterContext(VmAgent({
            "global": {"scrape_interval": "1s"},
            "scrape_configs": self.jobs(lambda found, _: {
                "kubernetes_sd_configs": [{**one, **trust} for one in found]})}))
        records.measured("all_scraped_seconds", self.seconds_until_scraped(agent))
        # A pod with another address takes a worker's place.
        self.end(worker)
        api.remove(objects[worker.name])
        successor = self.start("worker", worker.name)
        successor.wait_ready()
        api.put(object_of(successor))
        records.measured("successor_scraped_seconds", self.seconds_until_scraped(agent))
        self.assertEqual(api.refused, [])
        self.assertEqual(api.asked, set(namespaces()))
        self.prometheus_chooses_alike(targets_of(agent.address)[1])

    def prometheus_chooses_alike(self, discovered):
        def from_file(_, job):
            groups = [{"targets": [labels["__address__"]],
                       "labels": {name: value for name, value in labels.items()
                                  if name.startswith("__meta_")}}
                      for labels in discovered if labels["job"] == job]
            path = self.files / f"{job}.json"
            path.write_text(json.dumps(groups), encoding="utf-8")
            return {"file_sd_configs": [{"files": [str(path)]}]}

        prometheus = self.enterContext(Prometheus(jobs=self.jobs(from_file)))
        self.seconds_until_scraped(prometheus)
        records.measured("discovered", len(discovered))
        records.measured("scraped", len(self.expected()))
        self.assertGreater(len(discovered), len(self.expected()))


@unittest.skipIf(manifests.why_not_rendered(), manifests.why_not_rendered())
class NamespacesTest(unittest.TestCase):
    def test_all_that_overlays_make_are_looked_at(self):
        made = {manifests.Cluster(manifests.parse(manifests.render(
            manifests.KUBERNETES / "overlays" / name))).namespace for name in manifests.OVERLAYS}
        self.assertEqual(made, set(namespaces()))


if __name__ == "__main__":
    pod_cases.main()
