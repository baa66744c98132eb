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
import reach
import secrets_of_roles as secrets
from manifests import KUBERNETES, OVERLAYS, ROOT, Cluster, parse, render
from planted import PLANTED

LOCKSTEP = sys.argv.pop(1)
SCHEMAS = ROOT / "build" / "schemas"

# A setting out of range that the role's binary looks at last: its complaint about that one, and
# about nothing before it, shows that it has read the rest.
LAST_SETTING = {"gateway": "retry_budget: 5000", "router": "sequences_max: -1",
                "scheduler": "advance_tickets: 5000", "worker": "chunk_tokens: 1000"}


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
        for policy, overlay, right, wrong in PLANTED:
            with self.subTest(overlay=overlay, planted=wrong):
                text = self.text[overlay]
                self.assertIn(right, text)
                # Once is enough, be it in the first place or in the last one.
                before, _, after = text.rpartition(right)
                for planted in (text.replace(right, wrong, 1), before + wrong + after):
                    self.assertNotEqual(list(policy(Cluster(parse(planted)))), [])

    def test_config_maps_without_a_hash_are_found(self):
        planted = re.sub(r"(name: [a-z]+-config)-[a-z0-9]{10}$", r"\1", self.text["local"],
                         flags=re.M)
        self.assertEqual(set(policies.volumes(Cluster(parse(planted)))),
                         {f"{role}: a change of {name}-config rolls no pod"
                          for role in ("gateway", "router", "scheduler", "worker")
                          for name in (role, "security")})

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
        cluster = self.with_component("gpu-tp1", component)
        (scaler,) = cluster.of_kind("HorizontalPodAutoscaler")
        target = scaler["spec"]["scaleTargetRef"]
        body = cluster.find(target["kind"], target["name"])
        self.assertNotIn("replicas", body["spec"])
        (external,) = [one["external"] for one in scaler["spec"]["metrics"]]
        self.assertEqual(manifests.quantity(external["target"]["averageValue"]),
                         int(cluster.workload("worker").setting("sequences_max", 256)))
        metric = external["metric"]["name"]
        (rule,) = parse((component / "adapter_rules.yaml").read_text(encoding="utf-8"))[0][
            "externalRules"]
        self.assertEqual(rule["name"]["as"], metric)
        recorded = (ROOT / "deploy" / "monitoring" / "recording.yaml").read_text(encoding="utf-8")
        self.assertIn(f"record: {rule['seriesQuery']}\n", recorded)

    def with_component(self, overlay, component):
        """An overlay of one's own over one that there is; it fits schemas and policies."""
        with tempfile.TemporaryDirectory() as folder:
            beside = {"resources": KUBERNETES / "overlays" / overlay, "components": component}
            text = "".join(f"{key}: [{os.path.relpath(path, os.path.realpath(folder))}]\n"
                           for key, path in beside.items())
            (pathlib.Path(folder) / "kustomization.yaml").write_text(text, encoding="utf-8")
            objects = parse(render(folder))
        if (SCHEMAS / "ready").exists():
            self.assertEqual(schema_findings(objects), [])
        self.assertEqual(policies.findings(Cluster(objects)), [])
        return Cluster(objects)

    def test_shared_state_changes_the_modes_of_the_claim_and_nothing_else(self):
        cluster = self.with_component("local", KUBERNETES / "components" / "shared-state")
        claim = cluster.find("PersistentVolumeClaim", "scheduler-state")
        self.assertEqual(claim["spec"]["accessModes"], ["ReadWriteMany"])
        claim["spec"]["accessModes"] = ["ReadWriteOnce"]
        self.assertEqual(cluster.objects, parse(self.text["local"]))

    def test_overlays_say_how_many_pods_there_are(self):
        for name in ("local", "gpu-tp1", "gpu-tp2"):
            path = KUBERNETES / "overlays" / name / "kustomization.yaml"
            (said,) = parse(path.read_text(encoding="utf-8"))
            self.assertEqual({one["name"] for one in said["replicas"]},
                             {"gateway", "router", "worker"})

    def test_the_documented_removal_takes_all_but_namespace_and_claims(self):
        pages = "".join((ROOT / "docs" / name).read_text(encoding="utf-8")
                        for name in ("kubernetes.md", "operations.md"))
        self.assertNotRegex(pages, r"\| `kubectl delete -k")
        label = "app.kubernetes.io/part-of"
        (kinds,) = set(re.findall(rf"delete (\S+) +\\?\s*-l {label}=lockstep", pages))
        for text in self.text.values():
            removed = [one for one in parse(text)
                       if one["kind"] not in ("Namespace", "PersistentVolumeClaim")]
            self.assertEqual({one["kind"].lower() for one in removed}, set(kinds.split(",")))
            for one in removed:
                self.assertEqual(one["metadata"]["labels"][label], "lockstep")

    def test_jobs_are_confined_pods_that_policies_let_in(self):
        base = Cluster(parse(self.text["gpu-tp1"]))
        gateway = base.workload("gateway")
        for name in ("verify", "verify-plaintext", "certify"):
            (job,) = objects = parse(render(KUBERNETES / name))
            if (SCHEMAS / "ready").exists():
                self.assertEqual(schema_findings(objects), [])
            workload = manifests.Workload(base, job)
            self.assertEqual(workload.main["securityContext"], gateway.main["securityContext"])
            self.assertEqual(workload.pod["securityContext"], gateway.pod["securityContext"])
            # Such would bind it, and let nothing out.
            self.assertEqual(reach.policies_on(base, workload.labels), [])
            if name != "certify":
                self.assertEqual(workload.labels, reach.prover_labels())
            mounts = [one["mountPath"] for one in workload.main.get("volumeMounts", [])]
            for word in workload.main["args"]:
                if "=/" in word:
                    self.assertTrue(any(one in word for one in mounts), word)
            self.assertEqual(set(workload.volumes()),
                             {one["name"] for one in workload.main.get("volumeMounts", [])})

    def test_documented_jobs_take_image_node_and_segments_of_the_cluster(self):
        page = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
        documented = re.findall(r"kubectl kustomize deploy/k8s/(\S+) \|.*\n +(sed .*) \|"
                                r"\s+kubectl -n lockstep apply -f -\n", page)
        self.assertEqual([name for name, _ in documented], ["verify", "certify"])
        self.assertNotRegex(page, "apply -k deploy/k8s/(verify|certify)")
        # A digest and a registry with a port have all that a command may trip over.
        asked = {"IMAGE": "registry.test:5000/a/lockstep@sha256:0123", "NODE": "node-7",
                 "SEGMENTS": "2", "PATH": os.environ["PATH"]}
        for name, command in documented:
            done = subprocess.run(["bash", "-c", command], env=asked, text=True, check=True,
                                  input=render(KUBERNETES / name), capture_output=True)
            (job,) = parse(done.stdout)
            pod = job["spec"]["template"]["spec"]
            self.assertEqual(pod["containers"][0]["image"], asked["IMAGE"])
            if name == "certify":
                self.assertEqual(pod["nodeName"], asked["NODE"])
                self.assertIn("--reduction_segments=2", pod["containers"][0]["args"])

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
                    self.assertEqual(endpoint["scheme"], "https")
                    self.assertEqual(endpoint["tlsConfig"]["serverName"], workload.name)
                    trusted = endpoint["tlsConfig"]["ca"]["configMap"]
                    self.assertEqual(workload.volumes()["authorities"]["configMap"]["name"],
                                     trusted["name"])
                    self.assertIn(f"/{trusted['key']}\"", workload.config_text())
                    # What is sent is one token; the file of those that count has two for a while,
                    # which no header can hold.
                    sent = endpoint["authorization"]["credentials"]
                    self.assertNotIn(sent["name"], [one["secret"]["secretName"]
                                                    for one in workload.volumes().values()
                                                    if "secret" in one])


if __name__ == "__main__":
    unittest.main()
