#!/usr/bin/env python3
"""The manifests of deploy/k8s: they render, fit two sets of schemas, keep our policies, and carry
configurations that the binary reads. Every kind of check is shown a planted fault.

Usage: tests/deploy/manifests_test.py PATH_OF_LOCKSTEP [unittest arguments]
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import manifests
import policies
import secrets_of_roles as secrets
from manifests import KUBERNETES, OVERLAYS, ROOT, Cluster, parse, render

LOCKSTEP = sys.argv.pop(1)
SCHEMAS = ROOT / "build" / "schemas"

# A setting out of range that the role's binary looks at last: its complaint about that one, and
# about nothing before it, shows that it has read the rest.
LAST_SETTING = {"gateway": "retry_budget: 5000", "router": "sequences_max: -1",
                "scheduler": "advance_tickets: 5000", "worker": "chunk_tokens: 1000"}

# (policy, text of the rendered manifests, what stands there instead)
PLANTED = (
    (policies.probes, "--service=live", "--service=alive"),
    (policies.probes, "readinessProbe:", "redinessProbe:"),
    (policies.security, "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false"),
    (policies.security, "runAsNonRoot: true", "runAsNonRoot: false"),
    (policies.resources, "            memory: 1Gi", "            memori: 1Gi"),
    (policies.resources, "threads: 1", "threads: 2"),
    (policies.drain, "terminationGracePeriodSeconds: 60", "terminationGracePeriodSeconds: 30"),
    (policies.drain, "drain_finish_seconds: 30", "drain_finish_seconds: 55"),
    (policies.disruption, "maxUnavailable: 1\n  selector", "maxUnavailable: 0\n  selector"),
    (policies.scheduling, "tolerationSeconds: 10", "tolerationSeconds: 300"),
    (policies.scheduling, "type: Recreate", "type: RollingUpdate"),
    (policies.volumes, "claimName: scheduler-state", "claimName: scheduler-stat"),
    (policies.volumes, "- mountPath: /etc/lockstep\n          name: config",
     "- mountPath: /etc/lockstep\n          name: confg"),
    (policies.variables, "- name: POD_IP", "- name: POD_IPP"),
    (policies.variables, "- name: POD_NAMESPACE", "- name: NAMESPACE"),
    (policies.paths, "/var/lib/lockstep/scheduler.state", "/var/lib/lockstp/scheduler.state"),
    (policies.trust, "plaintext: true", "plaintext: false"),
    (policies.services, "targetPort: grpc", "targetPort: grcp"),
    (policies.services, "serviceName: worker", "serviceName: workers"),
    (policies.listening, "0.0.0.0:7101", "0.0.0.0:7102"),
    (policies.listening, "prometheus.io/scheme: http", "prometheus.io/scheme: https"),
    (policies.listening, 'cluster_id: "${POD_NAMESPACE}"', 'cluster_id: "lock"'),
    (policies.peers, "dns:///scheduler:7104", "dns:///schedulr:7104"),
    (policies.network, "port: 7106\n    to:", "port: 7107\n    to:"),
)


def schema_findings(objects):
    done = subprocess.run(["node", pathlib.Path(__file__).parent / "schemas" / "check.mjs",
                           SCHEMAS], input=json.dumps(objects), capture_output=True, text=True,
                          check=False)
    if done.returncode not in (0, 1) or done.stderr:
        raise AssertionError(done.stderr)
    return done.stdout.splitlines()


def read_by_binary(role, texts):
    """What the role says of its configuration with one setting that is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        secrets.write(folder, role)
        flags = []
        for i, text in enumerate([*texts, LAST_SETTING[role] + "\n"]):
            path = pathlib.Path(folder) / f"{i}.textproto"
            path.write_text(text.replace(secrets.MOUNTED, folder), encoding="utf-8")
            flags.append(f"--config={path}")
        environment = {"POD_NAME": f"{role}-0", "POD_NAMESPACE": "lockstep",
                       "POD_IP": "192.0.2.1"}
        done = subprocess.run([LOCKSTEP, role, *flags], capture_output=True, text=True, timeout=60,
                              check=False, env=environment)
        return done.returncode, done.stderr.replace(folder, "FOLDER")


@unittest.skipIf(manifests.why_not_rendered(), manifests.why_not_rendered())
class ManifestsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.text = {name: render(KUBERNETES / "overlays" / name) for name in OVERLAYS}

    def test_overlays_are_all_that_there_are(self):
        self.assertEqual(sorted(one.name for one in (KUBERNETES / "overlays").iterdir()),
                         sorted(OVERLAYS))

    def test_no_overlay_breaks_a_policy(self):
        for name, text in self.text.items():
            with self.subTest(name):
                self.assertEqual(policies.findings(Cluster(parse(text))), [])

    def test_every_policy_finds_what_is_planted(self):
        self.assertEqual({one[0] for one in PLANTED}, set(policies.POLICIES))
        for policy, right, wrong in PLANTED:
            with self.subTest(wrong):
                self.assertIn(right, self.text["local"])
                # Once is enough, be it in the first place or in the last one.
                text = self.text["local"]
                before, _, after = text.rpartition(right)
                for planted in (text.replace(right, wrong, 1), before + wrong + after):
                    self.assertNotEqual(list(policy(Cluster(parse(planted)))), [])

    def test_ranks_have_a_gpu_each(self):
        planted = self.text["gpu-tp2"].replace("tensor_parallel: 2", "tensor_parallel: 4")
        self.assertEqual(list(policies.resources(Cluster(parse(planted)))),
                         ["worker has 2 GPUs for 4 ranks"])

    def test_kustomize_refuses_a_file_that_is_not_there(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "kustomization.yaml").write_text("resources: [absent.yaml]\n",
                                                                     encoding="utf-8")
            with self.assertRaisesRegex(AssertionError, "absent.yaml"):
                render(folder)

    @unittest.skipUnless((SCHEMAS / "ready").exists(), "run tests/deploy/schemas/setup.sh")
    def test_schemas_fit(self):
        for name, text in self.text.items():
            with self.subTest(name):
                self.assertEqual(schema_findings(parse(text)), [])

    @unittest.skipUnless((SCHEMAS / "ready").exists(), "run tests/deploy/schemas/setup.sh")
    def test_schemas_find_an_unknown_field_and_a_wrong_type(self):
        text = self.text["local"]
        self.assertRegex("\n".join(schema_findings(parse(
            text.replace("failureThreshold: 3", "failureTreshold: 3", 1)))),
            "unknown field Deployment.*failureTreshold of V1Probe")
        self.assertRegex("\n".join(schema_findings(parse(
            text.replace("replicas: 1", 'replicas: "1"')))), "replicas must be integer")
        self.assertRegex("\n".join(schema_findings(parse(
            text.replace("serviceName: worker", "servicename: worker")))), "servicename")

    def test_the_binary_reads_every_configuration(self):
        for overlay, text in self.text.items():
            for workload in Cluster(parse(text)).workloads():
                with self.subTest(overlay=overlay, role=workload.name):
                    code, said = read_by_binary(workload.name, workload.config_files().values())
                    setting = LAST_SETTING[workload.name].partition(":")[0]
                    self.assertEqual(code, 2, said)
                    self.assertTrue(said.startswith(f"lockstep {workload.name}: {setting}: "), said)

    def test_the_binary_refuses_a_planted_setting(self):
        for workload in Cluster(parse(self.text["gpu-tp2"])).workloads():
            with self.subTest(workload.name):
                self.assertIn("cluster_idd", self.said_of(workload, "cluster_id", "cluster_idd"))
                self.assertIn("tls.kee", self.said_of(workload, "tls.key", "tls.kee"))
        worker = Cluster(parse(self.text["gpu-tp2"])).workload("worker")
        self.assertIn("tensor_parallel: 4",
                      self.said_of(worker, "tensor_parallel: 2", "tensor_parallel: 4"))

    def said_of(self, workload, right, wrong):
        """What the binary says of a workload's files with one word replaced."""
        self.assertIn(right, workload.config_text())
        return read_by_binary(workload.name, [text.replace(right, wrong)
                                              for text in workload.config_files().values()])[1]

    def test_autoscaling_fits_the_schemas_the_workload_and_the_recorded_metric(self):
        component = KUBERNETES / "components" / "autoscaling"
        with tempfile.TemporaryDirectory() as folder:
            beside = {"resources": KUBERNETES / "overlays" / "gpu-tp1", "components": component}
            text = "".join(f"{key}: [{os.path.relpath(path, os.path.realpath(folder))}]\n"
                           for key, path in beside.items())
            (pathlib.Path(folder) / "kustomization.yaml").write_text(text, encoding="utf-8")
            objects = parse(render(folder))
        if (SCHEMAS / "ready").exists():
            self.assertEqual(schema_findings(objects), [])
        cluster = Cluster(objects)
        self.assertEqual(policies.findings(cluster), [])
        (scaler,) = cluster.of_kind("HorizontalPodAutoscaler")
        target = scaler["spec"]["scaleTargetRef"]
        body = cluster.find(target["kind"], target["name"])
        self.assertNotIn("replicas", body["spec"])
        (metric,) = [one["external"]["metric"]["name"] for one in scaler["spec"]["metrics"]]
        (rule,) = parse((component / "adapter_rules.yaml").read_text(encoding="utf-8"))[0][
            "externalRules"]
        self.assertEqual(rule["name"]["as"], metric)
        recorded = (ROOT / "deploy" / "monitoring" / "recording.yaml").read_text(encoding="utf-8")
        self.assertIn(f"record: {rule['seriesQuery']}\n", recorded)

    def test_fronts_name_the_gateways_of_an_overlay_and_are_named_alike(self):
        places = {}
        for color, overlay in (("blue", "local"), ("green", "local-green")):
            text = render(KUBERNETES / "front" / color)
            front = Cluster(parse(text))
            if (SCHEMAS / "ready").exists():
                self.assertEqual(schema_findings(parse(text)), [])
            (service,) = front.of_kind("Service")
            name, namespace, domain = service["spec"]["externalName"].split(".", 2)
            self.assertEqual(domain, "svc.cluster.local")
            cluster = Cluster(parse(self.text[overlay]))
            self.assertEqual(namespace, cluster.namespace)
            self.assertEqual(cluster.find("Service", name)["spec"]["clusterIP"], "None")
            places[color] = (front.namespace, service["metadata"])
        self.assertEqual(places["blue"], places["green"])

    def test_green_is_local_in_another_namespace_with_another_contract(self):
        green = Cluster(parse(self.text["local-green"]))
        self.assertNotEqual(green.namespace, Cluster(parse(self.text["local"])).namespace)
        for one in green.objects:
            if one["kind"] != "Namespace":
                self.assertEqual(one["metadata"]["namespace"], green.namespace)
        changed = green.workload("worker").config_text().replace("reduction_segments: 2\n", "")
        changed = re.sub(r"^#.*\n", "", changed, flags=re.M)
        local = Cluster(parse(self.text["local"])).workload("worker").config_text()
        self.assertEqual(changed, re.sub(r"^#.*\n", "", local, flags=re.M))

    def test_pod_monitors_find_every_pod_and_the_secrets_that_it_needs(self):
        base = Cluster(parse(render(KUBERNETES / "base")))
        for component, cluster in (("pod-monitor", base),
                                   ("pod-monitor-plaintext", Cluster(parse(self.text["local"])))):
            monitors = [one["spec"] for one in parse(render(KUBERNETES / "components" / component))
                        if one["kind"] == "PodMonitor"]
            for workload in cluster.workloads():
                (monitor,) = [one for one in monitors
                              if manifests.selects(one["selector"], workload.labels)]
                (endpoint,) = monitor["podMetricsEndpoints"]
                self.assertIn(endpoint["port"], workload.ports())
                if component == "pod-monitor":
                    mounted = {one["secret"]["secretName"] for one in workload.volumes().values()
                               if "secret" in one}
                    self.assertEqual(endpoint["scheme"], "https")
                    self.assertEqual(endpoint["tlsConfig"]["serverName"], workload.name)
                    self.assertIn(endpoint["tlsConfig"]["ca"]["secret"]["name"], mounted)
                    self.assertIn(endpoint["authorization"]["credentials"]["name"], mounted)


if __name__ == "__main__":
    unittest.main()
